// Tests of ShardBuilder: jobs come and go while engines work.
#include "server/service/shard_builder.h"

#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "comm/compression/transfer.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr uint32_t kElements = 1000;

class ShardBuilderTest : public ::testing::Test {
 protected:
  ShardBuilderTest() {
    for (int i = 0; i < 2; ++i) {
      EngineEvents events;
      events.on_output = [this](uint32_t job, const ShardOutput&) {
        absl::MutexLock lock(&mutex_);
        answers_.push_back(job);
      };
      engines_.push_back(*Engine::Start({}, std::move(events)));
    }
    builder_ = std::make_unique<ShardBuilder>(
        std::vector<Engine*>{engines_[0].get(), engines_[1].get()});
  }
  ~ShardBuilderTest() override {
    builder_->Stop();
    for (const auto& engine : engines_) engine->Stop();
  }

  // Returns one block for each engine.
  std::vector<EngineJobOptions> Parts() const {
    const uint64_t elements = kElements;
    EngineJobOptions part;
    part.shard.seed_codec = *codecs_.Find(CodecId::kFp32);
    const Transfer fp32 = *ParseTransfer("fp32");
    part.shard.transfers.assign(2, {.push = fp32, .publish = fp32});
    part.shard.tensors.assign(2, {.shape = TensorShape({&elements, 1})});
    std::vector<EngineJobOptions> parts(2, part);
    for (uint32_t i = 0; i < 2; ++i) {
      parts[i].blocks = {{i, {.tensor = i, .first_element = 0, .elements = kElements}}};
    }
    return parts;
  }

  using Split = std::function<absl::StatusOr<std::vector<EngineJobOptions>>()>;
  // Waits for the answer.
  absl::Status Build(uint32_t job, Split split) {
    absl::Status built;
    absl::Notification done;
    builder_->Build(
        {.job = job, .split = std::move(split), .done = [&](const absl::Status& status) {
           built = status;
           done.Notify();
         }});
    done.WaitForNotification();
    return built;
  }
  absl::Status Build(uint32_t job) {
    return Build(job, [this] { return Parts(); });
  }

  void AwaitAnswers(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto all = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return answers_.size() >= count;
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&all), absl::Seconds(60)));
  }

  const CodecRegistry codecs_ = CodecRegistry::Builtin();
  absl::Mutex mutex_;
  std::vector<uint32_t> answers_ ABSL_GUARDED_BY(mutex_);  // jobs, from all engines
  std::vector<std::unique_ptr<Engine>> engines_;
  std::unique_ptr<ShardBuilder> builder_;
};

TEST_F(ShardBuilderTest, EnginesGoOnWhileALargeJobIsMade) {
  ASSERT_TRUE(Build(1).ok());
  absl::Notification making, made, announced;
  builder_->Build({.job = 2,
                   .split =
                       [&] {
                         making.Notify();
                         made.WaitForNotification();
                         return absl::StatusOr<std::vector<EngineJobOptions>>(Parts());
                       },
                   .done =
                       [&](const absl::Status& status) {
                         EXPECT_TRUE(status.ok()) << status;
                         announced.Notify();
                       }});
  making.WaitForNotification();
  for (const auto& engine : engines_) engine->Apply(1, ShardPrepare{1});
  AwaitAnswers(2);
  EXPECT_FALSE(announced.HasBeenNotified());
  made.Notify();
  announced.WaitForNotification();
  for (const auto& engine : engines_) engine->Apply(2, ShardPrepare{1});
  AwaitAnswers(4);
}

TEST_F(ShardBuilderTest, AJobThatFailsIsOnNoEngine) {
  const absl::Status built = Build(1, [this] {
    std::vector<EngineJobOptions> parts = Parts();
    parts[1].shard.training.optimizer.name = "no such thing";
    return parts;
  });
  EXPECT_EQ(built.code(), absl::StatusCode::kInvalidArgument) << built;
  for (const auto& engine : engines_) EXPECT_EQ(engine->Release(1), nullptr);
  EXPECT_TRUE(Build(2).ok()) << "the next one is made all the same";
}

TEST_F(ShardBuilderTest, WithoutMemoryTheJobFailsAndNotTheProcess) {
  const absl::Status built = Build(
      1,
      []() -> absl::StatusOr<std::vector<EngineJobOptions>> { throw std::bad_alloc(); });
  EXPECT_EQ(built.code(), absl::StatusCode::kResourceExhausted) << built;
  EXPECT_TRUE(Build(2).ok());
}

TEST_F(ShardBuilderTest, AJobThatIsDroppedMeanwhileIsNotAnnounced) {
  absl::Notification making, dropped;
  builder_->Build({.job = 1,
                   .split =
                       [&] {
                         making.Notify();
                         dropped.WaitForNotification();
                         return absl::StatusOr<std::vector<EngineJobOptions>>(Parts());
                       },
                   .done = [](const absl::Status& status) { ADD_FAILURE() << status; }});
  making.WaitForNotification();
  builder_->Drop(1);
  dropped.Notify();
  ASSERT_TRUE(Build(2).ok());  // comes after all earlier orders
  for (const auto& engine : engines_) EXPECT_EQ(engine->Release(1), nullptr);
}

TEST_F(ShardBuilderTest, AllJobsEndTogether) {
  ASSERT_TRUE(Build(1).ok());
  ASSERT_TRUE(Build(2).ok());
  builder_->DropAll();
  ASSERT_TRUE(Build(3).ok());
  for (const auto& engine : engines_) EXPECT_EQ(engine->ReleaseAll().size(), 1u);
}

}  // namespace
}  // namespace syncline
