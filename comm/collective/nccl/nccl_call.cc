#include "comm/collective/nccl/nccl_call.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/dtype.h"
#include "comm/base/status.h"

namespace syncline::collective {
namespace {

// Values of ncclDataType_t and ncclRedOp_t.
constexpr int kNcclInt8 = 0;
constexpr int kNcclUint8 = 1;
constexpr int kNcclInt32 = 2;
constexpr int kNcclInt64 = 4;
constexpr int kNcclFloat16 = 6;
constexpr int kNcclFloat32 = 7;
constexpr int kNcclFloat64 = 8;
constexpr int kNcclBfloat16 = 9;
constexpr int kNcclSum = 0;
constexpr int kNcclProduct = 1;
constexpr int kNcclMax = 2;
constexpr int kNcclMin = 3;
constexpr int kNcclAverage = 4;
constexpr int kReadAtOnce = 1;  // ncclScalarHostImmediate

int TypeOf(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return kNcclFloat32;
    case ElementType::kBf16:
      return kNcclBfloat16;
    case ElementType::kF16:
      return kNcclFloat16;
    case ElementType::kF64:
      return kNcclFloat64;
    case ElementType::kI64:
      return kNcclInt64;
    case ElementType::kI32:
      return kNcclInt32;
    case ElementType::kI8:
      return kNcclInt8;
    case ElementType::kU8:
      return kNcclUint8;
  }
  return kNcclUint8;
}

// Returns -1 if NCCL has no such reduction, or if one must be created for the call.
int ReductionOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return kNcclSum;
    case ReduceOp::kAverage:
      return kNcclAverage;
    case ReduceOp::kMin:
      return kNcclMin;
    case ReduceOp::kMax:
      return kNcclMax;
    case ReduceOp::kProduct:
      return kNcclProduct;
    default:
      return -1;
  }
}

template <typename T>
void Put(T value, std::array<std::byte, 8>& bytes) {
  std::memcpy(bytes.data(), &value, sizeof value);
}

// Returns the factor as one element.
std::array<std::byte, 8> Scalar(ElementType type, double factor) {
  std::array<std::byte, 8> bytes = {};
  const auto single = static_cast<float>(factor);
  const auto whole = static_cast<uint64_t>(static_cast<int64_t>(factor));
  switch (type) {
    case ElementType::kF32:
      Put(single, bytes);
      break;
    case ElementType::kBf16:
      Put(Bf16FromFloat(single), bytes);
      break;
    case ElementType::kF16:
      Put(F16FromFloat(single), bytes);
      break;
    case ElementType::kF64:
      Put(factor, bytes);
      break;
    default:
      Put(whole, bytes);  // little-endian: the low bytes come first
  }
  return bytes;
}
static_assert(std::endian::native == std::endian::little);

int FirstError(int first, int second) {
  const bool is_error = first != kNcclSuccess && first != kNcclInProgress;
  return is_error || second == kNcclSuccess ? first : second;
}

// Sends and receives that run concurrently.
class Exchange {
 public:
  explicit Exchange(const NcclTarget& target, const Call& call)
      : target_(target),
        bytes_(ElementBytes(call.type)),
        type_(TypeOf(call.type)),
        result_(target.nccl.group_start()) {}

  void Send(const void* from, size_t first, size_t count, int peer) {
    if (count == 0) return;
    const auto* const at = static_cast<const std::byte*>(from) + first * bytes_;
    result_ = FirstError(
        result_, target_.nccl.send(at, count, type_, peer, target_.comm, target_.stream));
  }
  void Receive(void* to, size_t first, size_t count, int peer) {
    if (count == 0) return;
    auto* const at = static_cast<std::byte*>(to) + first * bytes_;
    result_ = FirstError(result_, target_.nccl.receive(at, count, type_, peer,
                                                       target_.comm, target_.stream));
  }
  int End() { return FirstError(result_, target_.nccl.group_end()); }

 private:
  const NcclTarget& target_;
  const size_t bytes_;
  const int type_;
  int result_;
};

int AllToAll(const NcclTarget& target, const Call& call) {
  Exchange exchange(target, call);
  size_t sent = 0;
  size_t received = 0;
  for (int peer = 0; peer < target.place.ranks; ++peer) {
    const auto index = static_cast<size_t>(peer);
    const size_t out = call.send_counts.empty() ? call.count : call.send_counts[index];
    const size_t in =
        call.receive_counts.empty() ? call.count : call.receive_counts[index];
    exchange.Send(call.input, sent, out, peer);
    exchange.Receive(call.output, received, in, peer);
    sent += out;
    received += in;
  }
  return exchange.End();
}

int Gather(const NcclTarget& target, const Call& call) {
  Exchange exchange(target, call);
  exchange.Send(call.input, 0, call.count, call.root);
  if (target.place.rank == call.root) {
    for (int peer = 0; peer < target.place.ranks; ++peer) {
      exchange.Receive(call.output, static_cast<size_t>(peer) * call.count, call.count,
                       peer);
    }
  }
  return exchange.End();
}

int Scatter(const NcclTarget& target, const Call& call) {
  Exchange exchange(target, call);
  exchange.Receive(call.output, 0, call.count, call.root);
  if (target.place.rank == call.root) {
    for (int peer = 0; peer < target.place.ranks; ++peer) {
      exchange.Send(call.input, static_cast<size_t>(peer) * call.count, call.count, peer);
    }
  }
  return exchange.End();
}

int SendReceive(const NcclTarget& target, const Call& call) {
  Exchange exchange(target, call);
  if (target.place.rank == call.source) {
    exchange.Send(call.input, 0, call.count, call.root);
  } else {
    exchange.Receive(call.output, 0, call.count, call.source);
  }
  return exchange.End();
}

int Reduce(const NcclTarget& target, const Call& call, int reduction) {
  const auto& [nccl, comm, stream, place] = target;
  const int type = TypeOf(call.type);
  if (call.op == CollectiveOp::kReduceScatter) {
    return nccl.reduce_scatter(call.input, call.output, call.count, type, reduction, comm,
                               stream);
  }
  if (call.op == CollectiveOp::kReduce) {
    return nccl.reduce(call.input, call.output, call.count, type, reduction, call.root,
                       comm, stream);
  }
  const void* const from = call.input != nullptr ? call.input : call.output;
  return nccl.all_reduce(from, call.output, call.count, type, reduction, comm, stream);
}

int Premultiplied(const NcclTarget& target, const Call& call) {
  std::array<std::byte, 8> factor = Scalar(call.type, call.factor);
  int reduction = 0;
  const int made = target.nccl.create_premultiplied_sum(
      &reduction, factor.data(), TypeOf(call.type), kReadAtOnce, target.comm);
  if (made != kNcclSuccess) return made;
  const int launched = Reduce(target, call, reduction);
  return FirstError(launched, target.nccl.destroy_reduction(reduction, target.comm));
}

absl::Status CheckRank(const Call& call, const char* name, int given, int ranks) {
  if (given >= 0 && given < ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(CollectiveName(call.op)),
                                                 ": ", name, " is rank ", given,
                                                 ", but there are ", ranks, " ranks"));
}

}  // namespace

absl::Status CheckNcclCall(const Call& call, const NcclRank& place) {
  if (Reduces(call.op)) {
    SYNCLINE_RETURN_IF_ERROR(CheckReduction(call.type, call.reduce, call.factor));
    if (ReductionOf(call.reduce) < 0 && call.reduce != ReduceOp::kPremultipliedSum) {
      return absl::UnimplementedError(absl::StrCat(
          "NCCL cannot reduce ", std::string(ElementName(call.type)), " by ",
          std::string(ReduceName(call.reduce)), ": reduce it in host memory"));
    }
  }
  if (call.algorithm.has_value()) {
    return absl::UnimplementedError(
        "NCCL chooses its algorithms itself (NCCL_ALGO): give none");
  }
  if (call.label.size() > kLongestLabel) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the label '", call.label, "' is longer than ", kLongestLabel, " bytes"));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckRank(call, "the root", call.root, place.ranks));
  const auto ranks = static_cast<size_t>(place.ranks);
  const bool fits = call.send_counts.empty() == call.receive_counts.empty() &&
                    (call.send_counts.empty() || (call.send_counts.size() == ranks &&
                                                  call.receive_counts.size() == ranks));
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "counts to ", call.send_counts.size(), " and from ", call.receive_counts.size(),
        " ranks: give one for each of the ", ranks, " ranks, or none"));
  }
  if (call.op == CollectiveOp::kSendReceive) {
    SYNCLINE_RETURN_IF_ERROR(CheckRank(call, "the source", call.source, place.ranks));
    if ((call.root == place.rank) == (call.source == place.rank)) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", place.rank,
                                                     " is not one of two between ",
                                                     call.source, " and ", call.root));
    }
  }
  return CheckMemory(call, place.rank);
}

int LaunchNcclCall(const NcclTarget& target, const Call& call) {
  const auto& [nccl, comm, stream, place] = target;
  switch (call.op) {
    case CollectiveOp::kAllReduce:
    case CollectiveOp::kReduce:
    case CollectiveOp::kReduceScatter:
      return call.reduce == ReduceOp::kPremultipliedSum
                 ? Premultiplied(target, call)
                 : Reduce(target, call, ReductionOf(call.reduce));
    case CollectiveOp::kAllGather:
      return nccl.all_gather(call.input, call.output, call.count, TypeOf(call.type), comm,
                             stream);
    case CollectiveOp::kBroadcast: {
      const bool gives = place.rank == call.root && call.input != nullptr;
      return nccl.broadcast(gives ? call.input : call.output, call.output, call.count,
                            TypeOf(call.type), call.root, comm, stream);
    }
    case CollectiveOp::kGather:
      return Gather(target, call);
    case CollectiveOp::kScatter:
      return Scatter(target, call);
    case CollectiveOp::kAllToAll:
      return AllToAll(target, call);
    case CollectiveOp::kSendReceive:
      return SendReceive(target, call);
    case CollectiveOp::kBarrier:
      return nccl.all_reduce(call.output, call.output, 1, kNcclUint8, kNcclMax, comm,
                             stream);
  }
  return kNcclSuccess;
}

}  // namespace syncline::collective
