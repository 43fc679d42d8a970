#include "comm/collective/group/cost_agreement.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "comm/base/env.h"
#include "comm/base/status.h"
#include "comm/collective/group/cost_probe.h"
#include "comm/collective/group/group.h"

namespace syncline::collective {
namespace {

constexpr char kProbe[] = "probe";

// Two ranks; the first one measures.
using RankPair = std::optional<std::pair<int, int>>;

// What rank 0 has decided, as numbers that fit an all-reduce. Ranks that do not know a
// number give kUnknown, so that the maximum is what one rank knows.
constexpr double kUnknown = -1;
struct CostNumbers {
  double source = kUnknown;
  double measures_host = kUnknown;
  double measures_network = kUnknown;
  double measures_reduction = kUnknown;
  double host[3] = {kUnknown, kUnknown, kUnknown};
  double network[3] = {kUnknown, kUnknown, kUnknown};
  double reduction = kUnknown;
};
constexpr size_t kNumbers = sizeof(CostNumbers) / sizeof(double);

void Put(const LinkCost& cost, double* out) {
  out[0] = cost.latency;
  out[1] = cost.per_message;
  out[2] = cost.per_byte;
}

LinkCost LinkOf(const double* numbers) {
  return {.latency = numbers[0], .per_message = numbers[1], .per_byte = numbers[2]};
}

// Returns the first two ranks of one host, or rank 0 and the first rank elsewhere.
RankPair FindPair(const std::vector<int>& host_of, bool on_one_host) {
  const auto ranks = static_cast<int>(host_of.size());
  for (int a = 0; a < (on_one_host ? ranks : 1); ++a) {
    for (int b = a + 1; b < ranks; ++b) {
      const bool share =
          host_of[static_cast<size_t>(a)] == host_of[static_cast<size_t>(b)];
      if (share == on_one_host) return {{a, b}};
    }
  }
  return {};
}

class GroupPeer final : public ProbePeer {
 public:
  GroupPeer(Group& group, int rank, absl::Duration timeout)
      : group_(group), rank_(rank), timeout_(timeout) {}

  absl::Status Send(ByteView message) override {
    return group_.Run(CallOf(message.size(), group_.rank(), rank_, message.data()));
  }
  absl::Status Receive(MutableByteView message) override {
    Call call = CallOf(message.size(), rank_, group_.rank(), nullptr);
    call.output = message.data();
    return group_.Run(std::move(call));
  }
  absl::Duration Now() override { return clock_.Now(); }

 private:
  Call CallOf(size_t bytes, int from, int to, const void* input) const {
    return {.op = CollectiveOp::kSendReceive,
            .type = ElementType::kU8,
            .input = input,
            .count = bytes,
            .root = to,
            .source = from,
            .label = "probe",
            .timeout = timeout_};
  }

  Group& group_;
  const int rank_;
  const absl::Duration timeout_;
  const SteadyClock clock_;
};

// The state of one agreement, on one rank.
class Agreement {
 public:
  Agreement(const CostWish& wish, Group& group)
      : wish_(wish),
        group_(group),
        near_(FindPair(wish.host_of, /*on_one_host=*/true)),
        far_(FindPair(wish.host_of, /*on_one_host=*/false)) {}

  absl::StatusOr<AgreedCosts> Run() {
    CostNumbers numbers;
    if (group_.rank() == 0) {
      const absl::Status decided = Decide(numbers);
      if (!decided.ok()) return Refuse(decided);
    }
    SYNCLINE_RETURN_IF_ERROR(Share(numbers));
    const bool measures_host = numbers.measures_host > 0;
    const bool measures_network = numbers.measures_network > 0;
    const bool measures_reduction = numbers.measures_reduction > 0;
    if (measures_host || measures_network || measures_reduction) {
      if (measures_host) SYNCLINE_RETURN_IF_ERROR(Measure(near_, numbers.host));
      if (measures_network) SYNCLINE_RETURN_IF_ERROR(Measure(far_, numbers.network));
      if (measures_reduction) MeasureSums(numbers);
      SYNCLINE_RETURN_IF_ERROR(Share(numbers));
      if (group_.rank() == 0) {
        const absl::Status kept = Keep(numbers);
        if (!kept.ok()) return Refuse(kept);
      }
      // All ranks hear of a file that cannot be written.
      SYNCLINE_RETURN_IF_ERROR(
          group_.Run({.op = CollectiveOp::kBarrier, .timeout = wish_.timeout}));
    }
    return AgreedCosts{.costs = {.host = LinkOf(numbers.host),
                                 .network = LinkOf(numbers.network),
                                 .per_reduced_byte = numbers.reduction},
                       .source = static_cast<CostSource>(numbers.source)};
  }

 private:
  absl::Status Refuse(const absl::Status& why) {
    group_.Fail(why);
    return why;
  }

  bool has_file() const { return !wish_.setting.empty() && wish_.setting != kProbe; }

  // On rank 0: what is known, and what must be measured.
  absl::Status Decide(CostNumbers& numbers) {
    if (has_file()) {
      SYNCLINE_ASSIGN_OR_RETURN(known_, ReadCosts(wish_.setting));
    }
    const bool wants = !wish_.setting.empty() && wish_.host_of.size() > 1;
    const bool lacks_host = wants && near_.has_value() && !known_.host;
    const bool lacks_network = wants && far_.has_value() && !known_.network;
    const bool lacks_reduction = wants && !known_.per_reduced_byte;
    CostSource source = CostSource::kBuiltIn;
    if (lacks_host || lacks_network || lacks_reduction) {
      source = CostSource::kMeasured;
    } else if (known_ != KnownCosts{}) {
      source = CostSource::kFile;
    }
    const Costs costs = known_.OrBuiltIn();
    numbers = {.source = static_cast<double>(source),
               .measures_host = lacks_host ? 1.0 : 0.0,
               .measures_network = lacks_network ? 1.0 : 0.0,
               .measures_reduction = lacks_reduction ? 1.0 : 0.0,
               .reduction = costs.per_reduced_byte};
    Put(costs.host, numbers.host);
    Put(costs.network, numbers.network);
    return absl::OkStatus();
  }

  // All ranks must have the same numbers afterwards: the maximum of what they have.
  absl::Status Share(CostNumbers& numbers) {
    static_assert(sizeof numbers == kNumbers * sizeof(double));
    return group_.Run({.op = CollectiveOp::kAllReduce,
                       .type = ElementType::kF64,
                       .reduce = ReduceOp::kMax,
                       .output = &numbers,
                       .count = kNumbers,
                       .timeout = wish_.timeout});
  }

  // Replaces the numbers by measured ones on the rank that measures, and by kUnknown on
  // all others.
  absl::Status Measure(const RankPair& pair, double* out) {
    std::fill_n(out, 3, kUnknown);
    if (!pair) return absl::OkStatus();
    const auto [first, second] = *pair;
    if (group_.rank() == second) {
      GroupPeer peer(group_, first, wish_.timeout);
      return AnswerProbes(peer);
    }
    if (group_.rank() != first) return absl::OkStatus();
    GroupPeer peer(group_, second, wish_.timeout);
    SYNCLINE_ASSIGN_OR_RETURN(const LinkCost cost, MeasureLink(peer));
    Put(cost, out);
    return absl::OkStatus();
  }

  void MeasureSums(CostNumbers& numbers) const {
    const SteadyClock clock;
    numbers.reduction = group_.rank() == 0
                            ? MeasureReduction([&clock] { return clock.Now(); })
                            : kUnknown;
  }

  absl::Status Keep(const CostNumbers& numbers) {
    if (!has_file()) return absl::OkStatus();
    if (numbers.measures_host > 0) known_.host = LinkOf(numbers.host);
    if (numbers.measures_network > 0) known_.network = LinkOf(numbers.network);
    if (numbers.measures_reduction > 0) known_.per_reduced_byte = numbers.reduction;
    return WriteCosts(wish_.setting, known_);
  }

  const CostWish& wish_;
  Group& group_;
  const RankPair near_;
  const RankPair far_;
  KnownCosts known_;  // on rank 0
};

}  // namespace

absl::StatusOr<AgreedCosts> AgreeOnCosts(const CostWish& wish, Group& group) {
  return Agreement(wish, group).Run();
}

}  // namespace syncline::collective
