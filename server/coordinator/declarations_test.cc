// Which newcomers are asked for a declaration, how often, and what happens to those that
// do not answer.
#include "server/coordinator/declarations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "server/coordinator/declaration_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kFailureTimeout = absl::Seconds(10);

JobSpec OneTensor(const std::string& name, uint32_t workers = 2) {
  JobSpec job;
  job.name = name;
  job.workers = workers;
  job.tensors = {{.name = "a", .shape = {100}}};
  return job;
}

class DeclarationsTest : public ::testing::Test {
 protected:
  void Say(ConnectionId connection, MemberBody body) {
    Take(coordinator_.Apply(FromMember{connection, std::move(body)}, now_));
  }
  void Hello(ConnectionId connection, const JobSpec& job, uint32_t rank) {
    Say(connection, specs_.Hello(job, {.rank = rank, .run_id = "run"}));
  }
  // The newcomer sends its declaration.
  void Send(ConnectionId connection, const JobSpec& job) {
    Say(connection, specs_.Declaration(specs_.Hello(job).digest));
  }
  // Carries out all preparations that were ordered.
  void CarryOutAll() {
    while (!orders_.empty()) {
      const Preparation order = orders_.front();
      orders_.erase(orders_.begin());
      Take(coordinator_.Apply(CarryOut(order, specs_.reader()), now_));
    }
  }
  void PassTimeBeating(absl::Duration duration, const std::vector<ConnectionId>& alive) {
    for (const absl::Duration end = now_ + duration; now_ < end;) {
      now_ += absl::Milliseconds(500);
      for (const ConnectionId connection : alive) Say(connection, Heartbeat{});
      Take(coordinator_.Apply(Tick{}, now_));
    }
  }
  void Take(const CoordinatorOutputs& outputs) {
    for (const CoordinatorOutput& output : outputs) {
      if (const auto* prepare = std::get_if<Prepare>(&output)) {
        orders_.push_back(prepare->order);
      }
      if (const auto* close = std::get_if<CloseMember>(&output)) {
        closed_[close->connection] = close->status;
      }
      const auto* message = std::get_if<ToMember>(&output);
      if (message == nullptr) continue;
      if (std::holds_alternative<DescribeJob>(message->body)) {
        asked_.push_back(message->connection);
      }
      if (std::holds_alternative<Waiting>(message->body)) {
        ++told_to_wait_[message->connection];
      }
    }
  }
  size_t Members() const {
    const CoordinatorView view = coordinator_.View(now_);
    return view.jobs.empty() ? 0 : view.jobs[0].members.size();
  }
  std::string Refusal(ConnectionId connection) {
    const auto closed = closed_.find(connection);
    return closed == closed_.end() ? "" : std::string(closed->second.message());
  }

  DeclaredSpecs specs_;
  Coordinator coordinator_{CoordinatorOptions{Timeouts::Derive(kFailureTimeout), 1}};
  absl::Duration now_ = absl::Seconds(100);
  std::vector<Preparation> orders_;
  std::vector<ConnectionId> asked_;
  std::map<ConnectionId, absl::Status> closed_;
  std::map<ConnectionId, int> told_to_wait_;
  const JobSpec job_ = OneTensor("job", 100);
};

TEST_F(DeclarationsTest, OneOfManyIsAskedAndItsAnswerIsReadOnceForAll) {
  for (uint32_t rank = 0; rank < 50; ++rank) Hello(10 + rank, job_, rank);
  EXPECT_THAT(asked_, ElementsAre(10));
  EXPECT_THAT(orders_, IsEmpty());
  Send(10, job_);
  ASSERT_EQ(orders_.size(), 1u);
  EXPECT_EQ(Members(), 0u);
  CarryOutAll();
  EXPECT_EQ(Members(), 50u);
  for (uint32_t rank = 50; rank < 100; ++rank) Hello(10 + rank, job_, rank);
  EXPECT_EQ(Members(), 100u);
  EXPECT_THAT(asked_, ElementsAre(10)) << "the digest is known";
  EXPECT_THAT(orders_, IsEmpty());
  EXPECT_THAT(closed_, IsEmpty());
}

TEST_F(DeclarationsTest, OfASilentMemberAnotherIsAskedAndItHoldsNobody) {
  for (uint32_t rank = 0; rank < 3; ++rank) Hello(10 + rank, job_, rank);
  const std::vector<ConnectionId> alive = {10, 11, 12};
  PassTimeBeating(kFailureTimeout / 4 - absl::Seconds(1), alive);
  EXPECT_THAT(asked_, ElementsAre(10)) << "it may take its time";
  PassTimeBeating(absl::Seconds(1), alive);
  EXPECT_THAT(asked_, ElementsAre(10, 11));
  EXPECT_GE(told_to_wait_[12], 1);
  Send(11, job_);
  CarryOutAll();
  EXPECT_EQ(Members(), 3u) << "also the silent one: what it means is known";
  Send(10, job_);  // late, and of no use
  EXPECT_THAT(orders_, IsEmpty());
  EXPECT_THAT(closed_, IsEmpty());
}

TEST_F(DeclarationsTest, AMemberThatBeatsButNeverSendsIsDroppedAfterTheFailureTimeout) {
  Hello(10, job_, 0);
  PassTimeBeating(kFailureTimeout - absl::Seconds(1), {10});
  EXPECT_EQ(Refusal(10), "");
  PassTimeBeating(absl::Seconds(1), {10});
  EXPECT_THAT(Refusal(10), HasSubstr("did not send the declaration of job 'job' within"));
}

TEST_F(DeclarationsTest, OtherBytesAreTheirSendersFaultAndAnotherIsAsked) {
  Hello(10, job_, 0);
  Hello(11, job_, 1);
  JobSpec other = job_;
  other.tensors[0].name = "b";  // as long
  Send(10, other);
  CarryOutAll();
  EXPECT_THAT(Refusal(10), HasSubstr("does not have the digest that was announced"));
  EXPECT_THAT(asked_, ElementsAre(10, 11));
  other.tensors[0].name = "longer";
  Send(11, other);
  EXPECT_THAT(Refusal(11), HasSubstr("had announced"));
  EXPECT_THAT(orders_, IsEmpty()) << "another length is not even digested";
}

TEST_F(DeclarationsTest, WhatNobodyAskedForIsRefused) {
  Hello(10, job_, 0);
  Hello(11, job_, 1);
  Send(11, job_);
  EXPECT_THAT(Refusal(11), HasSubstr("was not asked for one"));
  EXPECT_THAT(orders_, IsEmpty());
}

TEST_F(DeclarationsTest, AnInvalidJobIsRefusedToAllWhoMeanIt) {
  JobSpec bad = job_;
  bad.settings.push_codec = "bf17";
  Hello(10, bad, 0);
  Hello(11, bad, 1);
  Send(10, bad);
  CarryOutAll();
  for (const ConnectionId worker : {10, 11}) {
    EXPECT_THAT(Refusal(worker), HasSubstr("did you mean 'bf16'"));
  }
}

TEST_F(DeclarationsTest, AHelloThatNamesAnotherJobThanItDeclaresIsRefused) {
  WorkerHello hello = specs_.Hello(job_, {.rank = 0});
  hello.job = "another";
  Say(10, hello);
  Send(10, job_);
  CarryOutAll();
  EXPECT_THAT(Refusal(10),
              HasSubstr("asked to join job 'another', but declared job 'job'"));
  Hello(11, job_, 0);  // its digest is known
  hello.rank = 1;
  Say(12, hello);
  EXPECT_THAT(Refusal(12),
              HasSubstr("asked to join job 'another', but declared job 'job'"));
  EXPECT_EQ(Members(), 1u);
}

TEST_F(DeclarationsTest, HellosWithoutADigestOrWithAnImpossibleSizeAreRefused) {
  WorkerHello hello = specs_.Hello(job_);
  hello.digest.pop_back();
  Say(10, hello);
  EXPECT_THAT(Refusal(10), HasSubstr("a digest of 31 bytes"));
  hello = specs_.Hello(job_);
  for (const uint64_t bytes : {uint64_t{0}, kMaxDeclarationBytes + 1, ~uint64_t{0}}) {
    hello.job_bytes = bytes;
    closed_.clear();
    Say(10, hello);
    EXPECT_THAT(Refusal(10), HasSubstr("allowed are 1 to")) << bytes;
  }
  EXPECT_THAT(asked_, IsEmpty());
}

TEST_F(DeclarationsTest, ANewcomerThatGoesOrFallsSilentIsForgotten) {
  Hello(10, job_, 0);
  Hello(11, job_, 1);
  Hello(12, job_, 2);
  Say(10, Leave{});
  EXPECT_TRUE(closed_.at(10).ok());
  Say(11, Disconnected{});
  PassTimeBeating(absl::Seconds(3), {12});
  EXPECT_THAT(Refusal(11), HasSubstr("its connection broke"));
  EXPECT_THAT(asked_, ElementsAre(10, 12)) << "who is there";
  PassTimeBeating(absl::Seconds(7), {});
  EXPECT_THAT(Refusal(12), HasSubstr("no heartbeat"));
}

TEST_F(DeclarationsTest, ANewcomerThatReturnsOnANewStreamGoesOn) {
  Hello(10, job_, 0);
  Say(10, Disconnected{});
  PassTimeBeating(absl::Seconds(2), {});
  Say(10, Returned{});
  PassTimeBeating(absl::Seconds(2), {10});
  Send(10, job_);
  CarryOutAll();
  EXPECT_EQ(Members(), 1u);
  EXPECT_THAT(closed_, IsEmpty());
}

// The process died while its declaration was being read. The next one with its rank is
// admitted.
TEST_F(DeclarationsTest, OneThatBrokeWhileItsJobWasReadMakesWayForItsSuccessor) {
  Hello(10, job_, 0);
  Send(10, job_);
  Say(10, Disconnected{});
  Hello(11, job_, 0);
  CarryOutAll();
  EXPECT_TRUE(absl::IsAborted(closed_[10])) << closed_[10];
  EXPECT_FALSE(closed_.contains(11)) << closed_[11];
  EXPECT_EQ(Members(), 1u);
}

TEST_F(DeclarationsTest, WhatAJobMeansInOtherWordsIsComparedOnce) {
  Hello(10, job_, 0);
  Send(10, job_);
  CarryOutAll();
  JobSpec other = job_;
  other.tensors[0].shape = {101};
  for (uint32_t rank = 1; rank < 4; ++rank) Hello(10 + rank, other, rank);
  Send(11, other);
  ASSERT_EQ(orders_.size(), 1u);
  CarryOutAll();
  for (const ConnectionId worker : {11, 12, 13}) {
    EXPECT_THAT(Refusal(worker), HasSubstr("tensor 'a' has shape [100]"));
    EXPECT_EQ(FailureOf(closed_[worker]), Failure::kJobRefused);
  }
  EXPECT_EQ(Members(), 1u);
}

TEST_F(DeclarationsTest, AServerThatComesWhileAJobIsPlacedIsPartOfThePlacement) {
  const JobSpec job = OneTensor("job", 1);
  Say(1, ServerHello{.name = "one", .shard_addresses = {"a"}});
  Hello(10, job, 0);
  Send(10, job);
  ASSERT_EQ(orders_.size(), 1u);
  const Preparation read = orders_.front();
  orders_.clear();
  Take(coordinator_.Apply(CarryOut(read, specs_.reader()), now_));
  ASSERT_EQ(orders_.size(), 1u);
  Say(2, ServerHello{.name = "two", .shard_addresses = {"a", "b"}});
  CarryOutAll();
  const CoordinatorView view = coordinator_.View(now_);
  ASSERT_EQ(view.jobs.size(), 1u);
  EXPECT_THAT(view.jobs[0].reason, HasSubstr("on 3 shards of 2 servers"));
}

// ---- What is held ----

class HeldDeclarations : public ::testing::Test {
 protected:
  static DeclarationLimits Limits() {
    return {.newcomers = 5, .small_bytes = 10, .under_way_bytes = 250, .kept_bytes = 300};
  }

  // Adds a newcomer with its own job, whose declaration has this many bytes.
  absl::Status Add(ConnectionId connection, uint64_t bytes) {
    const std::string digest(32, static_cast<char>(connection));
    return declarations_.Add(connection,
                             {.job = "j", .digest = digest, .job_bytes = bytes}, now_);
  }
  void Deliver(ConnectionId connection, uint64_t bytes) {
    declarations_.OnNewcomer(
        connection,
        JobDeclaration{std::make_shared<const std::string>(std::string(bytes, 'x'))},
        now_);
  }
  DeclarationRead Read(ConnectionId connection, uint64_t bytes) const {
    auto job = std::make_shared<DeclaredJob>();
    job->spec.name = "j";
    job->declaration = {
        .digest = std::string(32, static_cast<char>(connection)),
        .bytes = std::make_shared<const std::string>(std::string(bytes, 'x'))};
    return {.from = connection,
            .digest = job->declaration.digest,
            .bytes = bytes,
            .job = std::shared_ptr<const DeclaredJob>(job)};
  }
  std::vector<ConnectionId> Asked() const {
    std::vector<ConnectionId> asked;
    for (const CoordinatorOutput& output : outbox_.outputs()) {
      const auto* message = std::get_if<ToMember>(&output);
      if (message != nullptr && std::holds_alternative<DescribeJob>(message->body)) {
        asked.push_back(message->connection);
      }
    }
    return asked;
  }

  Outbox outbox_;
  Declarations declarations_{Timeouts::Derive(kFailureTimeout), outbox_, Limits()};
  absl::Duration now_ = absl::Seconds(100);
};

TEST_F(HeldDeclarations, LargeOnesAreAskedForAsTheyFitAndSmallOnesAtOnce) {
  for (const ConnectionId one : {1, 2, 3}) EXPECT_TRUE(Add(one, 100).ok());
  EXPECT_TRUE(Add(4, 10).ok());
  EXPECT_THAT(Asked(), ElementsAre(1, 2, 4));
  Deliver(1, 100);
  declarations_.Tick(now_, {});
  EXPECT_THAT(Asked(), ElementsAre(1, 2, 4)) << "it is being read";
  declarations_.OnRead(Read(1, 100), now_);
  EXPECT_THAT(Asked(), ElementsAre(1, 2, 4, 3));
}

TEST_F(HeldDeclarations, TheSilentOnesKeepOthersWaitingForAQuarterOfTheTimeoutOnly) {
  for (const ConnectionId one : {1, 2, 3}) EXPECT_TRUE(Add(one, 100).ok());
  EXPECT_THAT(Asked(), ElementsAre(1, 2));
  now_ += kFailureTimeout / 4;
  declarations_.Tick(now_, {});
  EXPECT_THAT(Asked(), ElementsAre(1, 2, 3));
}

TEST_F(HeldDeclarations, NewcomersAndAllBytesAreBounded) {
  for (const ConnectionId one : {1, 2, 3, 4, 5}) EXPECT_TRUE(Add(one, 9).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Add(6, 9)));
  for (const ConnectionId one : {1, 2}) {
    Deliver(one, 9);
    declarations_.OnRead(Read(one, 200), now_);
  }
  EXPECT_EQ(declarations_.kept_bytes(), 200u);
  const auto* refused = std::get_if<CloseMember>(&outbox_.outputs().back());
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->connection, 2u);
  EXPECT_THAT(std::string(refused->status.message()), HasSubstr("wait for the end of"));
}

TEST_F(HeldDeclarations, WhatNobodyUsesIsDropped) {
  EXPECT_TRUE(Add(1, 100).ok());
  Deliver(1, 100);
  declarations_.OnRead(Read(1, 100), now_);
  const std::string digest(32, '\1');
  ASSERT_NE(declarations_.Find(digest), nullptr);
  declarations_.Take(1);
  declarations_.Tick(now_, {digest});
  ASSERT_NE(declarations_.Find(digest), nullptr) << "a job has it";
  declarations_.Tick(now_, {});
  EXPECT_EQ(declarations_.Find(digest), nullptr);
  EXPECT_EQ(declarations_.kept_bytes(), 0u);
}

}  // namespace
}  // namespace syncline
