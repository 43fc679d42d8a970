#include "cli/bench/collective_plan.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "comm/base/byte_size.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/collective/compressed/compressed_all_reduce.h"

namespace syncline {
namespace {

using collective::CollectiveOp;
using collective::CompressedAllReduce;
using collective::ElementType;
using collective::ParseAlgorithm;
using collective::ParseCollective;
using collective::Problem;
using collective::ReduceOp;

constexpr int kMaxRanks = 256;
constexpr uint64_t kMaxBytes = uint64_t{1} << 34;

template <typename T>
absl::StatusOr<T> OrUsage(absl::StatusOr<T> value) {
  if (value.ok()) return value;
  return WithFailure(value.status(), Failure::kUsage);
}

// "8..4096" means 8, 32, 128, 512, 2048, 4096.
absl::StatusOr<std::vector<uint64_t>> ParseSizes(const std::string& bytes) {
  const std::pair<std::string, std::string> ends = absl::StrSplit(bytes, "..");
  const auto first = ParseByteSize(ends.first);
  const auto last = ParseByteSize(ends.second.empty() ? ends.first : ends.second);
  if (!first.ok() || !last.ok() || *first < 4 || *last < *first || *last > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--bytes is '", bytes,
                     "', expected a size as 4096 or 64Mi, or FIRST..LAST, from 4 to ",
                     FormatByteSize(kMaxBytes)));
  }
  std::vector<uint64_t> sizes;
  for (uint64_t size = *first; size < *last; size *= 4) sizes.push_back(size);
  sizes.push_back(*last);
  return sizes;
}

absl::Status ChooseWire(const CollectiveOptions& options, CollectivePlan& plan) {
  const bool is_plain = options.wire == "tcp-plain";
  if (!is_plain && options.wire != "tcp" && options.wire != "shared") {
    return WithFailure(
        absl::InvalidArgumentError(absl::StrCat("--wire is '", options.wire,
                                                "', expected shared, tcp or tcp-plain")),
        Failure::kUsage);
  }
  if (options.wire == "shared" && options.hosts <= 1) return absl::OkStatus();
  if (options.wire == "shared") {
    return WithFailure(
        absl::InvalidArgumentError("--hosts needs --wire tcp or tcp-plain: ranks that "
                                   "share memory are on one host"),
        Failure::kUsage);
  }
  plan.hosts = options.hosts > 0 ? options.hosts : plan.ranks;
  if (is_plain) plan.security = TcpSecurity::kPlain;
  if (plan.ranks % plan.hosts == 0) return absl::OkStatus();
  return WithFailure(absl::InvalidArgumentError("--hosts must be a divisor of --ranks"),
                     Failure::kUsage);
}

absl::Status ChooseCodec(const CollectiveOptions& options, CollectivePlan& plan) {
  if (options.codec.empty()) return absl::OkStatus();
  plan.codec = options.codec;
  if (options.is_exact) {
    return WithFailure(
        absl::InvalidArgumentError("--codec excludes --exact-order: a mean of encoded "
                                   "values is in the order of ranks in any case"),
        Failure::kUsage);
  }
  if (plan.op != CollectiveOp::kAllReduce || !options.algorithm.empty()) {
    return WithFailure(absl::InvalidArgumentError(
                           "--codec needs --op all_reduce, and excludes --algorithm: its "
                           "blocks go by all-to-all and all-gather"),
                       Failure::kUsage);
  }
  const absl::Status known = CompressedAllReduce::CheckCodec(options.codec);
  return known.ok() ? known : WithFailure(known, Failure::kUsage);
}

// Products are not offered, because those of many ranks are not exact in FP32 and could
// not be checked.
absl::Status ChooseReduction(const CollectiveOptions& options, CollectivePlan& plan) {
  std::string names;
  for (int k = 0; k < collective::kReduceOps; ++k) {
    const auto reduce = static_cast<ReduceOp>(k);
    if (reduce == ReduceOp::kProduct) continue;
    plan.reduce = reduce;
    const std::string name(collective::ReduceName(reduce));
    if (!collective::IsDefined(plan.type, reduce)) plan.type = ElementType::kI32;
    if (name == options.reduce) break;
    absl::StrAppend(&names, names.empty() ? "" : ", ", name);
    if (k + 1 < collective::kReduceOps) continue;
    return WithFailure(
        absl::InvalidArgumentError(
            absl::StrCat("--reduce is '", options.reduce, "', expected one of ", names)),
        Failure::kUsage);
  }
  if (options.reduce == "sum" || (Reduces(plan.op) && options.codec.empty())) {
    return absl::OkStatus();
  }
  return WithFailure(
      absl::InvalidArgumentError("--reduce needs --op all_reduce, reduce_scatter or "
                                 "reduce, and excludes --codec, which computes means"),
      Failure::kUsage);
}

}  // namespace

absl::StatusOr<CollectivePlan> PlanCollective(const CollectiveOptions& options) {
  CollectivePlan plan = {.ranks = options.ranks, .is_exact = options.is_exact};
  plan.costs = options.costs;
  SYNCLINE_ASSIGN_OR_RETURN(plan.op, OrUsage(ParseCollective(options.op)));
  SYNCLINE_ASSIGN_OR_RETURN(plan.sizes, OrUsage(ParseSizes(options.bytes)));
  if (options.ranks < 1 || options.ranks > kMaxRanks) {
    return WithFailure(absl::InvalidArgumentError("--ranks must be in [1, 256]"),
                       Failure::kUsage);
  }
  if (plan.op == CollectiveOp::kSendReceive) {
    return WithFailure(
        absl::InvalidArgumentError("send_receive is not an operation of all ranks"),
        Failure::kUsage);
  }
  SYNCLINE_RETURN_IF_ERROR(ChooseReduction(options, plan));
  SYNCLINE_RETURN_IF_ERROR(ChooseWire(options, plan));
  SYNCLINE_RETURN_IF_ERROR(ChooseCodec(options, plan));
  if (!options.algorithm.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(plan.algorithm, OrUsage(ParseAlgorithm(options.algorithm)));
    const Problem problem = {
        .op = plan.op,
        .ranks = plan.ranks,
        .local = plan.ranks / plan.hosts,
        .exact = plan.is_exact && OrderMatters(plan.type, plan.reduce)};
    SYNCLINE_RETURN_IF_ERROR(OrUsage(MakeSchedule(problem, *plan.algorithm)).status());
  }
  return plan;
}

}  // namespace syncline
