#include "comm/collective/group/group.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/dtype.h"
#include "comm/collective/group/members_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::collective {
namespace {

#ifdef SYNCLINE_SANITIZED
// Still more than a ring holds, but fast enough for tests.
constexpr size_t kLong = 4099;
constexpr size_t kSegments = 150'001;
#else
constexpr size_t kLong = 65537;
constexpr size_t kSegments = (3 << 20) / 4 + 1;
#endif

void RunRanks(const Members& members, const std::function<void(Group&)>& body) {
  const auto statuses = RunMembers(members, [&](Group& group) {
    body(group);
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses)
    ASSERT_TRUE(status.ok()) << status.message();
}

// Integers from 0 to 2, so that sums and products of nine are exact in every type but the
// smallest. There they wrap around in the oracle as well.
int Value(int rank, size_t element) {
  return static_cast<int>((static_cast<size_t>(rank) * 7 + element * 5) % 3);
}

template <typename T>
std::byte* Put(T value, std::byte* at) {
  std::memcpy(at, &value, sizeof value);
  return at + sizeof value;
}

std::byte* Write(ElementType type, double value, std::byte* at) {
  switch (type) {
    case ElementType::kF32:
      return Put(static_cast<float>(value), at);
    case ElementType::kBf16:
      return Put(Bf16FromFloat(static_cast<float>(value)), at);
    case ElementType::kF16:
      return Put(F16FromFloat(static_cast<float>(value)), at);
    case ElementType::kF64:
      return Put(value, at);
    case ElementType::kI64:
      return Put(static_cast<int64_t>(value), at);
    case ElementType::kI32:
      return Put(static_cast<int32_t>(value), at);
    case ElementType::kI8:
      return Put(static_cast<int8_t>(static_cast<int64_t>(value)), at);
    case ElementType::kU8:
      return Put(static_cast<uint8_t>(static_cast<int64_t>(value)), at);
  }
  return at;
}

using Bytes = std::vector<std::byte>;

Bytes Encode(ElementType type, const std::vector<double>& values) {
  Bytes bytes(values.size() * ElementBytes(type));
  std::byte* at = bytes.data();
  for (const double value : values) at = Write(type, value, at);
  return bytes;
}

struct Case {
  CollectiveOp op;
  ElementType type;
  ReduceOp reduce;
  std::optional<Algorithm> algorithm;
  size_t count;
  int ranks;
  int root;
};

std::string Describe(const Case& of) {
  return absl::StrCat(std::string(CollectiveName(of.op)), " ",
                      std::string(ReduceName(of.reduce)), " ", of.count, " ",
                      std::string(ElementName(of.type)), " by ",
                      of.algorithm ? std::string(AlgorithmName(*of.algorithm)) : "choice",
                      ", ", of.ranks, " ranks, root ", of.root);
}

std::vector<double> InputOf(const Case& of, int rank) {
  const bool all = of.op == CollectiveOp::kReduceScatter ||
                   of.op == CollectiveOp::kScatter || of.op == CollectiveOp::kAllToAll;
  std::vector<double> values(of.count * static_cast<size_t>(all ? of.ranks : 1));
  for (size_t i = 0; i < values.size(); ++i) values[i] = Value(rank, i);
  return values;
}

// The factor of a premultiplied sum.
double FactorOf(int rank) { return rank % 2 + 2; }

double Reduced(const Case& of, size_t element) {
  const bool scales = of.reduce == ReduceOp::kPremultipliedSum;
  const auto given = [&](int rank) {
    return Value(rank, element) * (scales ? FactorOf(rank) : 1);
  };
  double value = given(0);
  for (int rank = 1; rank < of.ranks; ++rank) {
    const double other = given(rank);
    const auto a = static_cast<int>(value);
    const auto b = static_cast<int>(other);
    if (of.reduce == ReduceOp::kBitwiseAnd) {
      value = a & b;
    } else if (of.reduce == ReduceOp::kBitwiseOr) {
      value = a | b;
    } else if (of.reduce == ReduceOp::kBitwiseXor) {
      value = a ^ b;
    } else if (of.reduce == ReduceOp::kMin) {
      value = std::min(value, other);
    } else if (of.reduce == ReduceOp::kMax) {
      value = std::max(value, other);
    } else if (of.reduce == ReduceOp::kProduct) {
      value *= other;
    } else {
      value += other;
    }
  }
  if (of.reduce != ReduceOp::kAverage) return value;
  value /= of.ranks;
  return of.type >= ElementType::kI64 ? std::trunc(value) : value;
}

// Computed from the definitions, in float64.
std::vector<double> Expected(const Case& of, int rank) {
  std::vector<double> out;
  const size_t own = static_cast<size_t>(rank) * of.count;
  switch (of.op) {
    case CollectiveOp::kReduce:
      if (rank != of.root) return out;
      [[fallthrough]];
    case CollectiveOp::kAllReduce:
      for (size_t i = 0; i < of.count; ++i) out.push_back(Reduced(of, i));
      return out;
    case CollectiveOp::kReduceScatter:
      for (size_t i = 0; i < of.count; ++i) out.push_back(Reduced(of, own + i));
      return out;
    case CollectiveOp::kGather:
      if (rank != of.root) return out;
      [[fallthrough]];
    case CollectiveOp::kAllGather:
      for (int from = 0; from < of.ranks; ++from) {
        for (size_t i = 0; i < of.count; ++i) out.push_back(Value(from, i));
      }
      return out;
    case CollectiveOp::kBroadcast:
      for (size_t i = 0; i < of.count; ++i) out.push_back(Value(of.root, i));
      return out;
    case CollectiveOp::kScatter:
      for (size_t i = 0; i < of.count; ++i) out.push_back(Value(of.root, own + i));
      return out;
    case CollectiveOp::kAllToAll:
      for (int from = 0; from < of.ranks; ++from) {
        for (size_t i = 0; i < of.count; ++i) out.push_back(Value(from, own + i));
      }
      return out;
    default:
      return out;
  }
}

void Check(Group& group, const Case& of) {
  const Bytes input = Encode(of.type, InputOf(of, group.rank()));
  const Bytes expected = Encode(of.type, Expected(of, group.rank()));
  Bytes output(expected.size());
  const absl::Status status = group.Run({.op = of.op,
                                         .type = of.type,
                                         .reduce = of.reduce,
                                         .factor = FactorOf(group.rank()),
                                         .input = input.data(),
                                         .output = output.data(),
                                         .count = of.count,
                                         .root = of.root,
                                         .algorithm = of.algorithm});
  ASSERT_TRUE(status.ok()) << Describe(of) << ": " << status.message();
  ASSERT_EQ(output, expected) << Describe(of) << ", rank " << group.rank();
}

// Checks every operation with every type, algorithm and length; reductions take turns.
struct Everything {
  std::vector<size_t> lengths;
  int first_type = 0;
  int types = kElementTypes;
};

void CheckEverything(Group& group, const Everything& what) {
  int turn = 0;
  for (int op = 0; op <= static_cast<int>(CollectiveOp::kAllToAll); ++op) {
    for (int type = what.first_type; type < what.first_type + what.types; ++type) {
      for (const size_t count : what.lengths) {
        Case of = {.op = static_cast<CollectiveOp>(op),
                   .type = static_cast<ElementType>(type % kElementTypes),
                   .reduce = static_cast<ReduceOp>(turn % kReduceOps),
                   .algorithm = {},
                   .count = count,
                   .ranks = group.ranks(),
                   .root = turn % group.ranks()};
        if (!IsDefined(of.type, of.reduce)) of.reduce = ReduceOp::kPremultipliedSum;
        ++turn;
        Check(group, of);
        for (const Algorithm algorithm : kAllAlgorithms) {
          of.algorithm = algorithm;
          const Problem problem = {
              .op = of.op, .ranks = of.ranks, .local = group.local()};
          if (!Supports(algorithm, problem)) continue;
          Check(group, of);
        }
      }
    }
  }
}

class Ranks : public testing::TestWithParam<Members> {};

TEST_P(Ranks, AllOperationsAreRight) {
  RunRanks(GetParam(), [](Group& group) {
    CheckEverything(group, {.lengths = {0, 1, 63, 64, 65}});
  });
}

TEST_P(Ranks, EveryReductionOfEveryTypeIsRight) {
  RunRanks(GetParam(), [](Group& group) {
    for (const CollectiveOp op : {CollectiveOp::kAllReduce, CollectiveOp::kReduceScatter,
                                  CollectiveOp::kReduce}) {
      for (int type = 0; type < kElementTypes; ++type) {
        for (int reduce = 0; reduce < kReduceOps; ++reduce) {
          Case of = {.op = op,
                     .type = static_cast<ElementType>(type),
                     .reduce = static_cast<ReduceOp>(reduce),
                     .algorithm = {},
                     .count = 65,
                     .ranks = group.ranks(),
                     .root = 0};
          if (!IsDefined(of.type, of.reduce)) continue;
          Check(group, of);
          of.algorithm = Algorithm::kDirect;
          Check(group, of);
        }
      }
    }
  });
}

TEST(Group, ReductionsThatDoNotFitTheirTypeAreRefused) {
  RunRanks({.ranks = 2}, [](Group& group) {
    float value = 1;
    EXPECT_TRUE(absl::IsInvalidArgument(
        group.Run({.reduce = ReduceOp::kBitwiseAnd, .output = &value, .count = 1})));
    EXPECT_TRUE(absl::IsInvalidArgument(group.Run({.type = ElementType::kI8,
                                                   .reduce = ReduceOp::kPremultipliedSum,
                                                   .factor = 0.5,
                                                   .output = &value,
                                                   .count = 1})));
  });
}

TEST_P(Ranks, LongVectorsAreRight) {
  RunRanks(GetParam(), [](Group& group) {
    CheckEverything(group, {.lengths = {kLong}, .first_type = group.ranks(), .types = 1});
    // More than the rings hold, in segments.
    Check(group, {.op = CollectiveOp::kAllReduce,
                  .type = ElementType::kF32,
                  .reduce = ReduceOp::kAverage,
                  .algorithm = {},
                  .count = kSegments,
                  .ranks = group.ranks(),
                  .root = 0});
  });
}

TEST_P(Ranks, NobodyLeavesABarrierBeforeAllAreThere) {
  std::atomic<int> arrived = 0;
  RunRanks(GetParam(), [&](Group& group) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      // Alternates between the board and messages.
      const std::optional<Algorithm> algorithm =
          round % 2 == 0 ? std::optional(Algorithm::kDirect) : std::nullopt;
      ASSERT_TRUE(group.Run({.op = CollectiveOp::kBarrier, .algorithm = algorithm}).ok());
      ASSERT_GE(arrived, round * group.ranks());
    }
  });
}

TEST(Group, KnowsWhichRanksShareAHost) {
  const auto local_of = [](const Members& members) {
    std::atomic<int> local = 0;
    RunRanks(members, [&](Group& group) { local = group.local(); });
    return local.load();
  };
  EXPECT_EQ(local_of({.ranks = 4, .per_host = 2}), 2);
  EXPECT_EQ(local_of({.ranks = 3}), 3);
  EXPECT_EQ(local_of({.ranks = 3, .per_host = 1}), 1);
  EXPECT_EQ(local_of({.ranks = 5, .per_host = 2, .missing = 1}), 1);
  EXPECT_EQ(local_of({.ranks = 3, .per_host = 2}), 1);
}

std::string NameOf(const testing::TestParamInfo<Members>& info) {
  return info.param.Name();
}

std::vector<Members> OfOneHost() {
  std::vector<Members> all;
  for (int ranks = 1; ranks < 10; ++ranks) all.push_back({.ranks = ranks});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Group, Ranks, testing::ValuesIn(OfOneHost()), NameOf);
INSTANTIATE_TEST_SUITE_P(
    Hosts, Ranks,
    testing::Values(Members{.ranks = 2, .per_host = 1},
                    Members{.ranks = 3, .per_host = 1, .security = TcpSecurity::kPlain},
                    Members{.ranks = 4, .per_host = 2},
                    Members{.ranks = 6, .per_host = 2},
                    Members{.ranks = 6, .per_host = 3},
                    Members{.ranks = 5, .per_host = 2, .missing = 1},
                    Members{.ranks = 8, .per_host = 4, .missing = 1}),
    NameOf);

// Ranks per host; 0: all on one host.
class NearAndFar : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Group, NearAndFar, testing::Values(0, 1), [](const auto& info) {
  return info.param == 0 ? "Near" : "Far";
});

TEST_P(NearAndFar, AllToAllTakesUnequalCounts) {
  RunRanks({.ranks = 4, .per_host = GetParam()}, [](Group& group) {
    const auto self = static_cast<size_t>(group.rank());
    std::vector<size_t> to(4);
    std::vector<size_t> from(4);
    std::vector<int32_t> input;
    std::vector<int32_t> expected;
    for (size_t peer = 0; peer < 4; ++peer) {
      to[peer] = (self + 2 * peer) % 5;
      from[peer] = (peer + 2 * self) % 5;
      input.insert(input.end(), to[peer], static_cast<int32_t>(self * 10 + peer));
      expected.insert(expected.end(), from[peer], static_cast<int32_t>(peer * 10 + self));
    }
    std::vector<int32_t> output(expected.size());
    const absl::Status status = group.Run({.op = CollectiveOp::kAllToAll,
                                           .type = ElementType::kI32,
                                           .input = input.data(),
                                           .output = output.data(),
                                           .send_counts = to,
                                           .receive_counts = from});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(output, expected);
  });
}

TEST(Group, AllToAllNeedsNoMemoryForNothing) {
  RunRanks({.ranks = 2}, [](Group& group) {
    // Rank 0 only receives, rank 1 only sends.
    const bool sends = group.rank() == 1;
    std::vector<float> values(2, sends ? 3 : 0);
    const absl::Status status = group.Run({.op = CollectiveOp::kAllToAll,
                                           .input = sends ? values.data() : nullptr,
                                           .output = sends ? nullptr : values.data(),
                                           .send_counts = {sends ? size_t{2} : 0, 0},
                                           .receive_counts = {0, sends ? size_t{0} : 2}});
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(values, std::vector<float>(2, 3));
    EXPECT_TRUE(absl::IsInvalidArgument(group.Run({.op = CollectiveOp::kAllToAll,
                                                   .input = values.data(),
                                                   .send_counts = {0, 0},
                                                   .receive_counts = {0, 1}})));
  });
}

// Both send more than a ring holds first. Neither may wait for the other's receive.
TEST_P(NearAndFar, SendsAndReceivesPassEachOther) {
  RunRanks({.ranks = 2, .per_host = GetParam()}, [](Group& group) {
    const size_t count = 1 << 20;
    const int peer = 1 - group.rank();
    const std::vector<int32_t> out(count, group.rank() + 5);
    std::vector<int32_t> in(count);
    auto send = group.Start({.op = CollectiveOp::kSendReceive,
                             .type = ElementType::kI32,
                             .input = out.data(),
                             .count = count,
                             .root = peer,
                             .source = group.rank(),
                             .tag = 3});
    auto receive = group.Start({.op = CollectiveOp::kSendReceive,
                                .type = ElementType::kI32,
                                .output = in.data(),
                                .count = count,
                                .root = group.rank(),
                                .source = peer,
                                .tag = 3});
    ASSERT_TRUE(send.ok() && receive.ok());
    // A collective operation in between has its own order.
    ASSERT_TRUE(group.Run({.op = CollectiveOp::kBarrier}).ok());
    EXPECT_TRUE(group.Wait(*send, absl::InfiniteDuration()).ok());
    EXPECT_TRUE(group.Wait(*receive, absl::InfiniteDuration()).ok());
    EXPECT_EQ(in, std::vector<int32_t>(count, peer + 5));
  });
}

TEST_P(NearAndFar, OperationsRunInTheOrderOfStart) {
  RunRanks({.ranks = 3, .per_host = GetParam()}, [](Group& group) {
    std::vector<std::vector<float>> values;
    std::vector<Group::Handle> handles;
    for (size_t k = 0; k < 20; ++k) values.emplace_back(1 + 4000 * (k % 3), 1.0f);
    for (auto& vector : values) {
      handles.push_back(*group.Start({.output = vector.data(), .count = vector.size()}));
    }
    for (size_t k = 20; k-- > 0;) {
      ASSERT_TRUE(group.Wait(handles[k], absl::Seconds(60)).ok());
      EXPECT_TRUE(group.IsDone(handles[k]));
      EXPECT_EQ(values[k], std::vector<float>(values[k].size(), 3.0f));
    }
  });
}

TEST_P(NearAndFar, SomebodyWhoDoesNotWaitGetsItDoneAllTheSame) {
  RunRanks({.ranks = 2, .per_host = GetParam()}, [](Group& group) {
    std::vector<float> values(100'000, 2);
    const auto handle = group.Start({.output = values.data(), .count = values.size()});
    while (!group.IsDone(*handle)) std::this_thread::yield();
    EXPECT_EQ(values.back(), 4);
  });
}

TEST_P(NearAndFar, AWaitMayEndBeforeTheOperation) {
  RunRanks({.ranks = 2, .per_host = GetParam()}, [](Group& group) {
    float value = 1;
    if (group.rank() == 0) {
      const auto handle = group.Start({.output = &value, .count = 1});
      EXPECT_TRUE(absl::IsDeadlineExceeded(group.Wait(*handle, absl::Milliseconds(1))));
      float second = 1;
      const auto after = group.Start({.output = &second, .count = 1});
      EXPECT_FALSE(group.IsDone(*handle));
      // Now the other rank may begin.
      ASSERT_TRUE(group
                      .Run({.op = CollectiveOp::kSendReceive,
                            .input = &value,
                            .root = 1,
                            .source = 0})
                      .ok());
      EXPECT_TRUE(group.Wait(*handle, absl::InfiniteDuration()).ok());
      EXPECT_TRUE(group.Wait(*after, absl::InfiniteDuration()).ok());
      EXPECT_EQ(value + second, 4);
    } else {
      ASSERT_TRUE(
          group.Run({.op = CollectiveOp::kSendReceive, .output = &value, .root = 1})
              .ok());
      for (int k = 0; k < 2; ++k) {
        value = 1;
        ASSERT_TRUE(group.Run({.output = &value, .count = 1}).ok());
      }
    }
  });
}

TEST(Group, RefusesWhatMakesNoSenseAndBeginsNothing) {
  RunMembers({.ranks = 2}, [](Group& group) {
    float value = 1;
    EXPECT_TRUE(absl::IsInvalidArgument(
        group.Run({.op = CollectiveOp::kBroadcast, .output = &value, .root = 2})));
    EXPECT_TRUE(absl::IsInvalidArgument(group.Run({.count = 1})));
    EXPECT_TRUE(absl::IsUnimplemented(
        group.Run({.op = CollectiveOp::kReduce, .algorithm = Algorithm::kRing})));
    return group.Run({.op = CollectiveOp::kBarrier});
  });
}

}  // namespace
}  // namespace syncline::collective
