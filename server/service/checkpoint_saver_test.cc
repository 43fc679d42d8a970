// Tests of CheckpointSaver: what a server does with the copies that its engines make.
#include "server/service/checkpoint_saver.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/directory_store.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kElements = 300;

// A store that does not answer until the test says so.
class SlowStore final : public BlobStore {
 public:
  explicit SlowStore(BlobStore& store) : store_(store) {}

  absl::StatusOr<std::vector<Blob>> List(const std::string& folder) override {
    return store_.List(folder);
  }
  absl::Status Read(const std::string& name, uint64_t offset,
                    MutableByteView out) override {
    return store_.Read(name, offset, out);
  }
  absl::StatusOr<std::unique_ptr<BlobWriter>> Create(const std::string& name,
                                                     size_t head_bytes) override {
    go_.WaitForNotification();
    return store_.Create(name, head_bytes);
  }
  absl::Status Claim(const std::string& name) override { return store_.Claim(name); }
  absl::Status Delete(const std::string& name) override { return store_.Delete(name); }
  std::string Describe() const override { return "a slow store"; }

  void Go() { go_.Notify(); }

 private:
  BlobStore& store_;
  absl::Notification go_;
};

class CheckpointSaverTest : public ::testing::Test {
 protected:
  CheckpointSaverTest() {
    auto layout = std::make_shared<CheckpointLayout>();
    layout->tensors = {{"w", {kElements}}};
    std::vector<TrainedTensor> trained(1);
    layout->plan = *TrainingPlan::Create({.optimizer = {.name = "sgd"}}, trained);
    layout_ = std::move(layout);
    saver_.emplace(CheckpointSaver::Options{.store = &slow_,
                                            .written =
                                                [this](CheckpointWritten written) {
                                                  absl::MutexLock lock(&mutex_);
                                                  written_.push_back(std::move(written));
                                                },
                                            .next =
                                                [this](uint32_t, uint32_t, uint64_t) {
                                                  absl::MutexLock lock(&mutex_);
                                                  ++nexts_;
                                                }});
    // Engine 1 has no blocks of the job.
    saver_->Begin({.job = 7,
                   .name = "job",
                   .run = 1,
                   .layout = layout_,
                   .blocks = {{{0, {0, 0, kElements}}}, {}}});
  }
  ~CheckpointSaverTest() override { saver_.reset(); }

  static ShardCopied Copied(uint64_t step) {
    auto saved = std::make_shared<BlockSnapshot>();
    saved->version = saved->updates = step;
    saved->weights.assign(kElements, 1.0F);
    return {.step = step, .block = 0, .saved = saved};
  }
  static ShardCutDone Done(uint64_t step) {
    return {.step = step, .rest = std::make_shared<ShardSnapshot>()};
  }
  bool Cut(uint64_t step) {
    const bool is_first = saver_->Take(7, 0, Copied(step)).is_first;
    saver_->Take(7, 0, Done(step));
    saver_->Take(7, 1, Done(step));
    return is_first;
  }
  std::vector<CheckpointWritten> AwaitWritten(size_t count) {
    const auto all = [&] { return written_.size() >= count; };
    absl::MutexLock lock(&mutex_, absl::Condition(&all));
    return written_;
  }

  TempDirectory directory_;
  std::unique_ptr<BlobStore> files_ = *OpenDirectoryStore(directory_.path());
  SlowStore slow_{*files_};
  std::shared_ptr<const CheckpointLayout> layout_;
  absl::Mutex mutex_;
  std::vector<CheckpointWritten> written_;
  int nexts_ = 0;
  std::optional<CheckpointSaver> saver_;
};

TEST_F(CheckpointSaverTest, WritesWhatEnginesHaveAndWaitsForNobodyElse) {
  slow_.Go();
  EXPECT_TRUE(Cut(10)) << "the others must be told";
  const CheckpointWritten written = AwaitWritten(1)[0];
  EXPECT_TRUE(written.status.ok()) << written.status;
  EXPECT_EQ(written.step, 10);
  ASSERT_EQ(written.files.size(), 2) << "of one shard";
  EXPECT_EQ(files_->List("job/run1-step10")->size(), 2);
}

TEST_F(CheckpointSaverTest, OneThatComesWhileTheLastIsWrittenFailsAlone) {
  Cut(10);
  Cut(20);
  slow_.Go();
  const auto written = AwaitWritten(2);
  EXPECT_TRUE(written[0].status.ok()) << written[0].status;
  EXPECT_EQ(written[1].step, 20);
  EXPECT_THAT(std::string(written[1].status.message()),
              HasSubstr("the checkpoint of step 10 is still being written"));
  EXPECT_TRUE(files_->List("job/run1-step20")->empty());
  Cut(30);
  EXPECT_TRUE(AwaitWritten(3)[2].status.ok());
}

TEST_F(CheckpointSaverTest, OneThatNeedsMoreMemoryThanThereIsFails) {
  saver_->Limit(kElements * sizeof(float) - 1);
  Cut(10);
  EXPECT_THAT(std::string(AwaitWritten(1)[0].status.message()), HasSubstr("--memory"));
  saver_->Limit(kElements * sizeof(float));
  slow_.Go();
  Cut(20);
  EXPECT_TRUE(AwaitWritten(2)[1].status.ok());
}

TEST_F(CheckpointSaverTest, WithoutAnyMemoryLeftNoneIsWritten) {
  slow_.Go();
  saver_->Limit(0);
  Cut(10);
  EXPECT_THAT(std::string(AwaitWritten(1)[0].status.message()), HasSubstr("--memory"));
  saver_->Limit(std::nullopt);
  Cut(20);
  EXPECT_TRUE(AwaitWritten(2)[1].status.ok());
}

TEST_F(CheckpointSaverTest, OneThatAnEngineIsPastFailsAndNoneIsOpenAfterwards) {
  slow_.Go();
  saver_->Take(7, 1, Done(10));
  saver_->Take(7, 0, ShardCutDone{.step = 10});
  EXPECT_THAT(std::string(AwaitWritten(1)[0].status.message()),
              HasSubstr("ordered too late"));
  saver_->Take(7, 1, Done(10));  // comes late: it begins no new save
  Cut(20);
  EXPECT_TRUE(AwaitWritten(2)[1].status.ok()) << AwaitWritten(2)[1].status;
}

TEST_F(CheckpointSaverTest, OfAJobThatEndsNothingIsLeft) {
  saver_->Take(7, 0, Copied(10));
  saver_->Drop(7);
  EXPECT_FALSE(saver_->Take(7, 0, Copied(20)).is_kept);
  slow_.Go();
  saver_.reset();
  EXPECT_TRUE(files_->List("")->empty());
  EXPECT_TRUE(AwaitWritten(0).empty());
}

TEST_F(CheckpointSaverTest, AsksForTheNextFrozenBlockOnceTheLastIsWritten) {
  ShardCopied copied = Copied(10);
  copied.more = true;
  EXPECT_TRUE(saver_->Take(7, 0, copied).is_kept);
  {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(nexts_, 0);
  }
  slow_.Go();
  const auto was_asked = [this] { return nexts_ == 1; };
  absl::MutexLock lock(&mutex_, absl::Condition(&was_asked));
  saver_->Limit(0);
  EXPECT_FALSE(saver_->Take(7, 0, copied).is_kept) << "then the engine goes on by itself";
}

TEST_F(CheckpointSaverTest, ALastStepIsWrittenAgainAndNoneAfterIt) {
  slow_.Go();
  Cut(20);
  AwaitWritten(1);
  saver_->Take(7, 1, Done(30));  // of an engine that trains nothing
  saver_->BeginLast(7, 20);
  EXPECT_FALSE(saver_->Take(7, 0, Copied(30)).is_kept);
  EXPECT_TRUE(Cut(20));
  const CheckpointWritten again = AwaitWritten(2)[1];
  EXPECT_EQ(again.step, 20);
  EXPECT_TRUE(again.status.ok()) << again.status;
}

}  // namespace
}  // namespace syncline
