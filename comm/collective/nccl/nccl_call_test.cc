// Runs every operation, type and reduction over the stand-in, and compares with sums
// computed here.
#include "comm/collective/nccl/nccl_call.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "comm/base/dtype.h"
#include "comm/collective/nccl/nccl_members_test_util.h"

namespace syncline::collective {
namespace {

constexpr int kRanks = 3;

double Read(ElementType type, const std::byte* at) {
  const auto as = [at](auto value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (type) {
    case ElementType::kF32:
      return as(0.0f);
    case ElementType::kBf16:
      return FloatFromBf16(as(uint16_t{0}));
    case ElementType::kF16:
      return FloatFromF16(as(uint16_t{0}));
    case ElementType::kF64:
      return as(0.0);
    case ElementType::kI64:
      return static_cast<double>(as(int64_t{0}));
    case ElementType::kI32:
      return as(int32_t{0});
    case ElementType::kI8:
      return as(int8_t{0});
    case ElementType::kU8:
      return as(uint8_t{0});
  }
  return 0;
}

void Write(ElementType type, double value, std::byte* at) {
  const auto put = [at](auto as) { std::memcpy(at, &as, sizeof as); };
  switch (type) {
    case ElementType::kF32:
      return put(static_cast<float>(value));
    case ElementType::kBf16:
      return put(Bf16FromFloat(static_cast<float>(value)));
    case ElementType::kF16:
      return put(F16FromFloat(static_cast<float>(value)));
    case ElementType::kF64:
      return put(value);
    case ElementType::kI64:
      return put(static_cast<int64_t>(value));
    case ElementType::kI32:
      return put(static_cast<int32_t>(value));
    case ElementType::kI8:
      return put(static_cast<int8_t>(value));
    case ElementType::kU8:
      return put(static_cast<uint8_t>(value));
  }
}

// Small whole numbers, which every type represents exactly, as it does their sums.
double Given(int rank, size_t index) {
  return static_cast<double>(1 + (static_cast<size_t>(rank) * 3 + index) % 4);
}

struct Values {
  Values(ElementType type, size_t count)
      : type(type), count(count), bytes(count * ElementBytes(type)) {}
  static Values Of(ElementType type, size_t count, int rank) {
    Values made(type, count);
    for (size_t i = 0; i < count; ++i) made.Set(i, Given(rank, i));
    return made;
  }
  void Set(size_t index, double value) {
    Write(type, value, &bytes[index * ElementBytes(type)]);
  }
  double At(size_t index) const { return Read(type, &bytes[index * ElementBytes(type)]); }

  ElementType type;
  size_t count;
  std::vector<std::byte> bytes;
};

double Reduced(ReduceOp op, size_t index) {
  double sum = 0;
  double product = 1;
  double least = 99;
  double most = 0;
  double scaled = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const double value = Given(rank, index);
    sum += value;
    product *= value;
    least = std::min(least, value);
    most = std::max(most, value);
    scaled += value * (rank + 1);
  }
  switch (op) {
    case ReduceOp::kSum:
      return sum;
    case ReduceOp::kAverage:
      return sum / kRanks;
    case ReduceOp::kMin:
      return least;
    case ReduceOp::kMax:
      return most;
    case ReduceOp::kProduct:
      return product;
    default:
      return scaled;
  }
}

// Returns the value as the type rounds it.
double Rounded(ElementType type, double value) {
  std::byte bytes[8] = {};
  Write(type, value, bytes);
  return Read(type, bytes);
}

struct Reducing {
  ElementType type;
  ReduceOp op;
};

void CheckReduced(const Reducing& how, const Values& out, size_t first) {
  for (size_t i = 0; i < out.count; ++i) {
    ASSERT_EQ(out.At(i), Rounded(how.type, Reduced(how.op, first + i)))
        << ElementName(how.type) << " " << ReduceName(how.op) << " " << i;
  }
}

constexpr size_t kCounts[] = {0, 1, 65, 40'000};

absl::Status ReduceAll(NcclGroup& group, int rank, const Reducing& how, size_t count) {
  const Values in = Values::Of(how.type, count, rank);
  Values out(how.type, count);
  Call call = {.type = how.type,
               .reduce = how.op,
               .factor = rank + 1.0,
               .input = in.bytes.data(),
               .output = out.bytes.data(),
               .count = count};
  absl::Status status = RunCall(group, call);
  CheckReduced(how, out, 0);
  out = in;
  call.input = nullptr;  // in place
  status.Update(RunCall(group, call));
  CheckReduced(how, out, 0);
  call.op = CollectiveOp::kReduce;
  call.input = in.bytes.data();
  call.root = 1;
  if (rank != 1) call.output = nullptr;
  status.Update(RunCall(group, call));
  if (rank == 1) CheckReduced(how, out, 0);
  const Values whole = Values::Of(how.type, count * kRanks, rank);
  call.op = CollectiveOp::kReduceScatter;
  call.input = whole.bytes.data();
  call.output = out.bytes.data();
  status.Update(RunCall(group, call));
  CheckReduced(how, out, static_cast<size_t>(rank) * count);
  return status;
}

TEST(NcclCall, ReducesEveryType) {
  const auto statuses = RunOnNccl({.ranks = kRanks}, [](NcclGroup& group, int rank) {
    absl::Status status;
    for (int type = 0; type < kElementTypes; ++type) {
      for (int op = 0; op <= static_cast<int>(ReduceOp::kPremultipliedSum); ++op) {
        for (const size_t count : kCounts) {
          status.Update(ReduceAll(
              group, rank, {static_cast<ElementType>(type), static_cast<ReduceOp>(op)},
              count));
        }
      }
    }
    return status;
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

absl::Status MoveAll(NcclGroup& group, int rank, ElementType type, size_t count) {
  const Values own = Values::Of(type, count, rank);
  Values out(type, count * kRanks);
  Call call = {.op = CollectiveOp::kAllGather,
               .type = type,
               .input = own.bytes.data(),
               .output = out.bytes.data(),
               .count = count,
               .root = 2};
  const auto check = [&](const Values& found, size_t at, int from, size_t first) {
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(found.At(at + i), Given(from, first + i))
          << CollectiveName(call.op) << " " << ElementName(type) << " from " << from;
    }
  };
  absl::Status status = RunCall(group, call);
  for (size_t r = 0; r < kRanks; ++r) check(out, r * count, static_cast<int>(r), 0);
  call.op = CollectiveOp::kGather;
  std::fill(out.bytes.begin(), out.bytes.end(), std::byte{0});
  status.Update(RunCall(group, call));
  for (size_t r = 0; r < kRanks && rank == 2; ++r) {
    check(out, r * count, static_cast<int>(r), 0);
  }
  Values part = own;
  call.op = CollectiveOp::kBroadcast;
  call.input = nullptr;
  call.output = part.bytes.data();
  status.Update(RunCall(group, call));
  check(part, 0, 2, 0);
  const Values whole = Values::Of(type, count * kRanks, rank);
  call.op = CollectiveOp::kScatter;
  call.input = rank == 2 ? whole.bytes.data() : nullptr;
  status.Update(RunCall(group, call));
  check(part, 0, 2, static_cast<size_t>(rank) * count);
  call.op = CollectiveOp::kAllToAll;
  call.input = whole.bytes.data();
  call.output = out.bytes.data();
  status.Update(RunCall(group, call));
  for (size_t r = 0; r < kRanks; ++r) {
    check(out, r * count, static_cast<int>(r), static_cast<size_t>(rank) * count);
  }
  call = {.op = CollectiveOp::kSendReceive,
          .type = type,
          .input = own.bytes.data(),
          .output = part.bytes.data(),
          .count = count,
          .root = 2,
          .source = 0};
  if (rank != 1) status.Update(RunCall(group, call));
  if (rank == 2) check(part, 0, 0, 0);
  status.Update(RunCall(group, {.op = CollectiveOp::kBarrier}));
  return status;
}

TEST(NcclCall, MovesEveryType) {
  const auto statuses = RunOnNccl({.ranks = kRanks}, [](NcclGroup& group, int rank) {
    absl::Status status;
    for (int type = 0; type < kElementTypes; ++type) {
      for (const size_t count : kCounts) {
        status.Update(MoveAll(group, rank, static_cast<ElementType>(type), count));
      }
    }
    return status;
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(NcclCall, ExchangesSlicesOfDifferentSizes) {
  const auto statuses = RunOnNccl({.ranks = 2}, [](NcclGroup& group, int rank) {
    const std::vector<int32_t> given = {10 * rank, 10 * rank + 1, 10 * rank + 2};
    std::vector<int32_t> got(static_cast<size_t>(rank == 0 ? 4 : 2), -1);
    const Call call = {.op = CollectiveOp::kAllToAll,
                       .type = ElementType::kI32,
                       .input = given.data(),
                       .output = got.data(),
                       .send_counts = {rank == 0 ? size_t{1} : size_t{3},
                                       rank == 0 ? size_t{2} : size_t{0}},
                       .receive_counts = {rank == 0 ? size_t{1} : size_t{2},
                                          rank == 0 ? size_t{3} : size_t{0}}};
    const absl::Status status = RunCall(group, call);
    EXPECT_EQ(got, rank == 0 ? (std::vector<int32_t>{0, 10, 11, 12})
                             : (std::vector<int32_t>{1, 2}));
    return status;
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(NcclCall, IsRefusedWhereItMakesNoSense) {
  float value = 0;
  const NcclRank place = {.rank = 1, .ranks = 2};
  const Call good = {.input = &value, .output = &value, .count = 1};
  EXPECT_TRUE(CheckNcclCall(good, place).ok());
  Call call = good;
  call.type = ElementType::kI32;
  call.reduce = ReduceOp::kBitwiseXor;
  EXPECT_TRUE(absl::IsUnimplemented(CheckNcclCall(call, place)));
  call = good;
  call.reduce = ReduceOp::kBitwiseXor;  // undefined for floating point
  EXPECT_TRUE(absl::IsInvalidArgument(CheckNcclCall(call, place)));
  call = good;
  call.algorithm = Algorithm::kRing;
  EXPECT_TRUE(absl::IsUnimplemented(CheckNcclCall(call, place)));
  call = good;
  call.output = nullptr;
  EXPECT_TRUE(absl::IsInvalidArgument(CheckNcclCall(call, place)));
  for (const int root : {-1, 2}) {
    call = good;
    call.op = CollectiveOp::kBroadcast;
    call.root = root;
    EXPECT_TRUE(absl::IsInvalidArgument(CheckNcclCall(call, place)));
  }
  call = good;
  call.op = CollectiveOp::kAllToAll;
  call.send_counts = {1};
  EXPECT_TRUE(absl::IsInvalidArgument(CheckNcclCall(call, place)));
  call.receive_counts = {1};
  EXPECT_TRUE(absl::IsInvalidArgument(CheckNcclCall(call, place)));
  call = good;
  call.op = CollectiveOp::kSendReceive;
  EXPECT_TRUE(absl::IsInvalidArgument(CheckNcclCall(call, place)));  // for rank 0 alone
  call.root = 1;
  EXPECT_TRUE(CheckNcclCall(call, place).ok());
  call = good;
  call.label = std::string(24, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(CheckNcclCall(call, place)));
}

}  // namespace
}  // namespace syncline::collective
