// Tests exact_order: the bits are the same for every algorithm, on one host and on
// several, and equal those of a plain loop.
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/dtype.h"
#include "comm/collective/group/members_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::collective {
namespace {

#ifdef SYNCLINE_SANITIZED
constexpr size_t kLong = 9001;
#else
constexpr size_t kLong = 70'001;  // more than a ring holds, in segments
#endif

using Bytes = std::vector<std::byte>;

double ReadAt(ElementType type, const Bytes& bytes, size_t i) {
  const std::byte* const at = &bytes[i * ElementBytes(type)];
  const auto as = [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  if (type == ElementType::kF32) return as(float{});
  if (type == ElementType::kF64) return as(double{});
  return type == ElementType::kBf16 ? FloatFromBf16(as(uint16_t{}))
                                    : FloatFromF16(as(uint16_t{}));
}

void WriteAt(ElementType type, double value, Bytes& bytes, size_t i) {
  const auto put = [&](auto bits) {
    std::memcpy(&bytes[i * ElementBytes(type)], &bits, sizeof bits);
  };
  const auto narrow = static_cast<float>(value);
  if (type == ElementType::kF32) return put(narrow);
  if (type == ElementType::kF64) return put(value);
  put(type == ElementType::kBf16 ? Bf16FromFloat(narrow) : F16FromFloat(narrow));
}

// Values of both signs and several magnitudes, so that different orders give different
// sums.
Bytes ValuesOf(ElementType type, int rank, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(rank) * 1000 + 17);
  Bytes bytes(count * ElementBytes(type));
  for (size_t i = 0; i < count; ++i) {
    const double value = (static_cast<double>(random() % 20001) - 10000) / 7;
    WriteAt(type, value / static_cast<double>(size_t{1} << random() % 6), bytes, i);
  }
  return bytes;
}

// T is the type of the computation.
template <typename T>
Bytes InRankOrder(ElementType type, ReduceOp op, const std::vector<Bytes>& values) {
  Bytes out(values[0].size());
  for (size_t i = 0; i < out.size() / ElementBytes(type); ++i) {
    auto result = static_cast<T>(ReadAt(type, values[0], i));
    for (size_t rank = 1; rank < values.size(); ++rank) {
      const auto next = static_cast<T>(ReadAt(type, values[rank], i));
      result = op == ReduceOp::kProduct ? result * next : result + next;
    }
    if (op == ReduceOp::kAverage) result /= static_cast<T>(values.size());
    WriteAt(type, static_cast<double>(result), out, i);
  }
  return out;
}

struct Case {
  ElementType type;
  ReduceOp op;
  size_t count;
};

Bytes Oracle(const Case& of, const std::vector<Bytes>& values) {
  return of.type == ElementType::kF64 ? InRankOrder<double>(of.type, of.op, values)
                                      : InRankOrder<float>(of.type, of.op, values);
}

constexpr ElementType kTypes[] = {ElementType::kF32, ElementType::kF64,
                                  ElementType::kBf16, ElementType::kF16};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const ElementType type : kTypes) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      for (const size_t count : {1u, 63u, 1025u}) cases.push_back({type, op, count});
    }
    cases.push_back({type, ReduceOp::kProduct, 65});
    cases.push_back({type, ReduceOp::kSum, kLong});
  }
  return cases;
}

std::string Describe(const Case& of, std::optional<Algorithm> algorithm) {
  return absl::StrCat(
      std::string(ReduceName(of.op)), " of ", of.count, " ",
      std::string(ElementName(of.type)), " by ",
      algorithm ? std::string(AlgorithmName(*algorithm)) : std::string("choice"));
}

std::vector<std::optional<Algorithm>> AlgorithmsFor(const Group& group, const Case& of) {
  std::vector<std::optional<Algorithm>> found = {std::nullopt};
  const Problem problem = {.op = CollectiveOp::kAllReduce,
                           .ranks = group.ranks(),
                           .local = group.local(),
                           .exact = true,
                           .rounds = RoundsPartials(of.type)};
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (Supports(algorithm, problem)) found.push_back(algorithm);
  }
  return found;
}

void CheckAllReduce(Group& group, const Case& of, const std::vector<Bytes>& values) {
  const Bytes expected = Oracle(of, values);
  for (const auto algorithm : AlgorithmsFor(group, of)) {
    Bytes out = values[static_cast<size_t>(group.rank())];
    const absl::Status status = group.Run({.type = of.type,
                                           .reduce = of.op,
                                           .output = out.data(),
                                           .count = of.count,
                                           .algorithm = algorithm});
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(out == expected) << Describe(of, algorithm) << ", rank " << group.rank();
  }
}

// The root is the last rank.
void CheckReduce(Group& group, const Case& of, const std::vector<Bytes>& values) {
  const int root = group.ranks() - 1;
  Bytes out(values[0].size());
  const absl::Status status =
      group.Run({.op = CollectiveOp::kReduce,
                 .type = of.type,
                 .reduce = of.op,
                 .input = values[static_cast<size_t>(group.rank())].data(),
                 .output = out.data(),
                 .count = of.count,
                 .root = root});
  ASSERT_TRUE(status.ok()) << status.message();
  if (group.rank() != root) return;
  ASSERT_TRUE(out == Oracle(of, values)) << Describe(of, std::nullopt);
}

void CheckReduceScatter(Group& group, Case of) {
  const auto ranks = static_cast<size_t>(group.ranks());
  std::vector<Bytes> values;
  for (int rank = 0; rank < group.ranks(); ++rank) {
    values.push_back(ValuesOf(of.type, rank, of.count * ranks));
  }
  const Bytes whole = Oracle(of, values);
  const size_t bytes = of.count * ElementBytes(of.type);
  Bytes out(bytes);
  const auto self = static_cast<size_t>(group.rank());
  const absl::Status status = group.Run({.op = CollectiveOp::kReduceScatter,
                                         .type = of.type,
                                         .reduce = of.op,
                                         .input = values[self].data(),
                                         .output = out.data(),
                                         .count = of.count});
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(std::memcmp(out.data(), whole.data() + self * bytes, bytes), 0)
      << Describe(of, std::nullopt);
}

std::vector<absl::Status> RunExact(const Members& members,
                                   const std::function<absl::Status(Group&)>& body) {
  Members exact = members;
  exact.exact_order = true;
  return RunMembers(exact, body);
}

class ExactRanks : public testing::TestWithParam<Members> {};

TEST_P(ExactRanks, HaveTheBitsOfAPlainLoop) {
  const auto statuses = RunExact(GetParam(), [](Group& group) {
    for (const Case& of : Cases()) {
      std::vector<Bytes> values;
      for (int rank = 0; rank < group.ranks(); ++rank) {
        values.push_back(ValuesOf(of.type, rank, of.count));
      }
      CheckAllReduce(group, of, values);
      if (of.count < kLong) {
        CheckReduce(group, of, values);
        CheckReduceScatter(group, of);
      }
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

std::vector<Members> Everywhere() {
  std::vector<Members> all;
  for (int ranks = 1; ranks < 10; ++ranks) all.push_back({.ranks = ranks});
  const auto plain = TcpSecurity::kPlain;
  for (const auto& [ranks, per_host] :
       {std::pair(2, 1), std::pair(3, 1), std::pair(4, 2), std::pair(6, 2),
        std::pair(6, 3), std::pair(8, 2), std::pair(9, 3)}) {
    all.push_back({.ranks = ranks, .per_host = per_host, .security = plain});
  }
  all.push_back({.ranks = 5, .per_host = 2, .missing = 1, .security = plain});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Group, ExactRanks, testing::ValuesIn(Everywhere()),
                         [](const auto& info) { return info.param.Name(); });

TEST(ExactOrder, LeavesWhatDoesNotDependOnItToAllAlgorithms) {
  RunExact({.ranks = 4}, [](Group& group) {
    int32_t value = group.rank();
    EXPECT_TRUE(group
                    .Run({.type = ElementType::kI32,
                          .output = &value,
                          .count = 1,
                          .algorithm = Algorithm::kHalving})
                    .ok());
    EXPECT_EQ(value, 6);
    float most = static_cast<float>(group.rank());
    EXPECT_TRUE(group
                    .Run({.reduce = ReduceOp::kMax,
                          .output = &most,
                          .count = 1,
                          .algorithm = Algorithm::kTree})
                    .ok());
    EXPECT_EQ(most, 3);
    const absl::Status refused =
        group.Run({.output = &most, .count = 1, .algorithm = Algorithm::kTree});
    EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
    return absl::OkStatus();
  });
}

TEST(ExactOrder, IsAskedForByAllOrByNone) {
  for (const size_t count : {1u, 5000u}) {
    MemoryStore store;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        GroupOptions options = Members{.ranks = 2}.Options("test", rank, &store);
        options.exact_order = rank == 1;
        auto group = Group::Create(options);
        ASSERT_TRUE(group.ok()) << group.status();
        std::vector<float> values(count);
        const absl::Status status =
            (*group)->Run({.output = values.data(), .count = count});
        EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
        EXPECT_THAT(std::string(status.message()),
                    testing::HasSubstr("in the exact order of ranks"));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace syncline::collective
