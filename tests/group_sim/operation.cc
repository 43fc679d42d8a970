#include "tests/group_sim/operation.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "comm/base/dtype.h"

namespace syncline::group_sim {
namespace {

using collective::Call;
using collective::CollectiveOp;
using collective::ElementType;
using collective::ReduceOp;

template <typename T>
void PutAs(double value, std::byte* to) {
  const T typed = static_cast<T>(value);
  std::memcpy(to, &typed, sizeof typed);
}

template <typename T>
double GetAs(const std::byte* from) {
  T typed;
  std::memcpy(&typed, from, sizeof typed);
  return static_cast<double>(typed);
}

void Put(ElementType type, double value, std::byte* to) {
  switch (type) {
    case ElementType::kF32:
      return PutAs<float>(value, to);
    case ElementType::kF64:
      return PutAs<double>(value, to);
    case ElementType::kBf16:
      return PutAs<uint16_t>(Bf16FromFloat(static_cast<float>(value)), to);
    case ElementType::kF16:
      return PutAs<uint16_t>(F16FromFloat(static_cast<float>(value)), to);
    case ElementType::kI64:
      return PutAs<int64_t>(value, to);
    case ElementType::kI32:
      return PutAs<int32_t>(value, to);
    case ElementType::kI8:
      return PutAs<int8_t>(value, to);
    case ElementType::kU8:
      return PutAs<uint8_t>(value, to);
  }
}

double Get(ElementType type, const std::byte* from) {
  switch (type) {
    case ElementType::kF32:
      return GetAs<float>(from);
    case ElementType::kF64:
      return GetAs<double>(from);
    case ElementType::kBf16:
      return FloatFromBf16(static_cast<uint16_t>(GetAs<uint16_t>(from)));
    case ElementType::kF16:
      return FloatFromF16(static_cast<uint16_t>(GetAs<uint16_t>(from)));
    case ElementType::kI64:
      return static_cast<double>(GetAs<int64_t>(from));
    case ElementType::kI32:
      return GetAs<int32_t>(from);
    case ElementType::kI8:
      return GetAs<int8_t>(from);
    case ElementType::kU8:
      return GetAs<uint8_t>(from);
  }
  return 0;
}

// Returns element `i` of a rank's input. Products stay small, and averages divide evenly.
double Value(const Operation& operation, int rank, int ranks, size_t i) {
  uint64_t mixed = operation.salt + static_cast<uint64_t>(rank) * 0x9e3779b97f4a7c15u +
                   i * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 29)) * 0x94d049bb133111ebu;
  const auto drawn = static_cast<int>(mixed >> 61);  // 0 to 7
  if (operation.reduce == ReduceOp::kProduct) return drawn == 0 && rank < 6 ? 2 : 1;
  if (operation.reduce == ReduceOp::kAverage) return (drawn % 2) * ranks;
  return drawn;
}

// Returns the rank's factor of a premultiplied sum.
double FactorOf(const Operation& operation, int rank) {
  const bool scales = operation.reduce == ReduceOp::kPremultipliedSum;
  return scales ? 1 + rank % 2 : 1;
}

double Reduced(const Operation& operation, int ranks, size_t i) {
  const auto given = [&](int rank) {
    return Value(operation, rank, ranks, i) * FactorOf(operation, rank);
  };
  double result = given(0);
  for (int rank = 1; rank < ranks; ++rank) {
    const double value = given(rank);
    switch (operation.reduce) {
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
        result = std::max(result, value);
        break;
      case ReduceOp::kProduct:
        result *= value;
        break;
      case ReduceOp::kBitwiseAnd:
        result = static_cast<int>(result) & static_cast<int>(value);
        break;
      case ReduceOp::kBitwiseOr:
        result = static_cast<int>(result) | static_cast<int>(value);
        break;
      case ReduceOp::kBitwiseXor:
        result = static_cast<int>(result) ^ static_cast<int>(value);
        break;
      default:
        result += value;
        break;
    }
  }
  return operation.reduce == ReduceOp::kAverage ? result / ranks : result;
}

size_t Total(const std::vector<size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), size_t{0});
}

std::vector<size_t> Sent(const Operation& operation, int from) {
  return operation.counts[static_cast<size_t>(from)];
}

std::vector<size_t> Received(const Operation& operation, int to) {
  std::vector<size_t> counts;
  for (const auto& row : operation.counts) counts.push_back(row[static_cast<size_t>(to)]);
  return counts;
}

bool IsInPlace(CollectiveOp op) {
  return op == CollectiveOp::kAllReduce || op == CollectiveOp::kBroadcast;
}

size_t InputCount(const Operation& operation, int rank, int ranks) {
  const size_t all = operation.count * static_cast<size_t>(ranks);
  switch (operation.op) {
    case CollectiveOp::kReduceScatter:
      return all;
    case CollectiveOp::kScatter:
      return rank == operation.root ? all : 0;
    case CollectiveOp::kAllToAll:
      return operation.counts.empty() ? all : Total(Sent(operation, rank));
    case CollectiveOp::kSendReceive:
      return rank == operation.source ? operation.count : 0;
    case CollectiveOp::kAllReduce:
    case CollectiveOp::kBroadcast:
    case CollectiveOp::kBarrier:
      return 0;
    default:
      return operation.count;
  }
}

size_t OutputCount(const Operation& operation, int rank, int ranks) {
  const size_t all = operation.count * static_cast<size_t>(ranks);
  const bool root = rank == operation.root;
  switch (operation.op) {
    case CollectiveOp::kAllGather:
      return all;
    case CollectiveOp::kGather:
      return root ? all : 0;
    case CollectiveOp::kReduce:
    case CollectiveOp::kSendReceive:
      return root ? operation.count : 0;
    case CollectiveOp::kAllToAll:
      return operation.counts.empty() ? all : Total(Received(operation, rank));
    case CollectiveOp::kBarrier:
      return 0;
    default:
      return operation.count;
  }
}

// Returns the rank and the position of the input that an element of the output has.
std::pair<int, size_t> Origin(const Operation& operation, int rank, size_t i) {
  const size_t count = operation.count;
  const auto self = static_cast<size_t>(rank);
  switch (operation.op) {
    case CollectiveOp::kBroadcast:
      return {operation.root, i};
    case CollectiveOp::kScatter:
      return {operation.root, self * count + i};
    case CollectiveOp::kSendReceive:
      return {operation.source, i};
    case CollectiveOp::kAllToAll: {
      if (operation.counts.empty()) {
        return {static_cast<int>(i / count), self * count + i % count};
      }
      size_t from = 0;
      for (; i >= operation.counts[from][self]; ++from) i -= operation.counts[from][self];
      const auto& row = operation.counts[from];
      const auto before = row.begin() + static_cast<std::ptrdiff_t>(self);
      return {static_cast<int>(from), std::accumulate(row.begin(), before, i)};
    }
    default:
      return {static_cast<int>(i / count), i % count};
  }
}

double Expected(const Operation& operation, int rank, int ranks, size_t i) {
  if (operation.op == CollectiveOp::kReduceScatter) {
    return Reduced(operation, ranks, static_cast<size_t>(rank) * operation.count + i);
  }
  if (collective::Reduces(operation.op)) return Reduced(operation, ranks, i);
  const auto [from, at] = Origin(operation, rank, i);
  return Value(operation, from, ranks, at);
}

}  // namespace

bool TakesPart(const Operation& operation, int rank) {
  return operation.op != CollectiveOp::kSendReceive || rank == operation.root ||
         rank == operation.source;
}

Memory MemoryOf(const Operation& operation, int rank, int ranks) {
  const size_t bytes = collective::ElementBytes(operation.type);
  Memory memory = {
      .input = std::vector<std::byte>(InputCount(operation, rank, ranks) * bytes),
      .output = std::vector<std::byte>(OutputCount(operation, rank, ranks) * bytes)};
  const bool in_place = IsInPlace(operation.op);
  auto& given = in_place ? memory.output : memory.input;
  if (operation.op == CollectiveOp::kBroadcast && rank != operation.root) return memory;
  for (size_t i = 0; i < given.size() / bytes; ++i) {
    Put(operation.type, Value(operation, rank, ranks, i), given.data() + i * bytes);
  }
  return memory;
}

Call CallOf(const Operation& operation, int rank, Memory& memory) {
  Call call = {.op = operation.op,
               .type = operation.type,
               .reduce = operation.reduce,
               .factor = FactorOf(operation, rank),
               .input = memory.input.empty() ? nullptr : memory.input.data(),
               .output = memory.output.empty() ? nullptr : memory.output.data(),
               .count = operation.count,
               .root = operation.root,
               .source = operation.source,
               .algorithm = operation.algorithm};
  if (!operation.counts.empty()) {
    call.send_counts = Sent(operation, rank);
    call.receive_counts = Received(operation, rank);
  }
  return call;
}

std::optional<std::string> Differs(const Operation& operation, int rank, int ranks,
                                   const std::vector<std::byte>& output) {
  const size_t bytes = collective::ElementBytes(operation.type);
  for (size_t i = 0; i < output.size() / bytes; ++i) {
    const double got = Get(operation.type, output.data() + i * bytes);
    const double expected = Expected(operation, rank, ranks, i);
    if (got != expected) {
      return absl::StrCat("element ", i, " is ", got, " instead of ", expected);
    }
  }
  return std::nullopt;
}

}  // namespace syncline::group_sim
