#include "server/service/awaited_store.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "comm/base/temp_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/directory_store.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Status kAway = absl::UnavailableError("nobody answers");

// A directory that can be opened when the test says so. Records what on_change reports.
class Place {
 public:
  AwaitedStoreOptions Options() {
    return {.where = "a bucket",
            .open = [this] { return Open(); },
            .on_change =
                [this](const absl::Status& status) {
                  absl::MutexLock lock(&mutex_);
                  said_.push_back(status.code());
                },
            .patience = absl::InfiniteDuration(),
            .first_pause = absl::Milliseconds(1),
            .longest_pause = absl::Milliseconds(1)};
  }
  void Be(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    status_ = status;
  }
  void AwaitAttempts(int more) {
    absl::MutexLock lock(&mutex_);
    const int enough = attempts_ + more;
    const auto are_made = [this, enough]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return attempts_ >= enough;
    };
    mutex_.Await(absl::Condition(&are_made));
  }
  void AwaitSaid(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto is_said = [this, count]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return said_.size() >= count;
    };
    mutex_.Await(absl::Condition(&is_said));
  }
  std::vector<absl::StatusCode> said() {
    absl::MutexLock lock(&mutex_);
    return said_;
  }

 private:
  absl::StatusOr<std::unique_ptr<BlobStore>> Open() {
    absl::MutexLock lock(&mutex_);
    ++attempts_;
    if (!status_.ok()) return status_;
    return OpenDirectoryStore(directory_.path());
  }

  TempDirectory directory_;
  absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  int attempts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<absl::StatusCode> said_ ABSL_GUARDED_BY(mutex_);
};

bool Never() { return false; }

TEST(AwaitedStore, IsTheStoreOnceThatIsOpen) {
  Place place;
  AwaitedStore store(place.Options());
  ASSERT_EQ(store.AwaitFirst(absl::InfiniteDuration(), Never), absl::OkStatus());
  const auto writer = *store.Create("job/part", 0);
  EXPECT_TRUE(writer->Finish({}).ok());
  EXPECT_EQ(store.List("job")->size(), 1u);
  EXPECT_TRUE(store.Read("job/part", 0, {}).ok());
  EXPECT_TRUE(store.Claim("job/run1.claimed").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(store.Claim("job/run1.claimed")));
  EXPECT_TRUE(store.Delete("job/part").ok());
}

TEST(AwaitedStore, TriesUntilTheStoreIsThereAndLetsOthersWait) {
  Place place;
  place.Be(kAway);
  AwaitedStore store(place.Options());
  EXPECT_EQ(store.AwaitFirst(absl::InfiniteDuration(), Never), kAway);
  std::thread waits([&] { EXPECT_TRUE(store.Claim("job/run1.claimed").ok()); });
  place.AwaitAttempts(3);
  place.Be(absl::OkStatus());
  waits.join();
  place.AwaitSaid(2);
  EXPECT_THAT(place.said(),
              ElementsAre(absl::StatusCode::kUnavailable, absl::StatusCode::kOk));
}

TEST(AwaitedStore, NobodyWaitsLongerThanHeIsTo) {
  Place place;
  place.Be(kAway);
  AwaitedStoreOptions options = place.Options();
  for (const absl::Duration patience : {absl::ZeroDuration(), absl::Milliseconds(1)}) {
    options.patience = patience;
    AwaitedStore store(options);
    EXPECT_TRUE(absl::IsUnavailable(store.List("").status()));
    EXPECT_TRUE(absl::IsUnavailable(store.Delete("x")));
  }
}

TEST(AwaitedStore, NobodyWaitsForWhatHasToBeSetRight) {
  Place place;
  place.Be(absl::PermissionDeniedError("the key is wrong"));
  AwaitedStore store(place.Options());
  ASSERT_TRUE(store.AwaitFirst(absl::InfiniteDuration(), Never).has_value());
  EXPECT_TRUE(absl::IsPermissionDenied(store.List("").status()));
  place.Be(absl::OkStatus());
  place.AwaitSaid(2);
  EXPECT_TRUE(store.List("").ok()) << "it was";
}

TEST(AwaitedStore, WhoAsksBeforeTheFirstAttemptIsOverHearsThat) {
  absl::Mutex mutex;
  bool may_answer = false;
  std::stop_source ends;
  {
    AwaitedStore store({.where = "a bucket",
                        .open = [&]() -> absl::StatusOr<std::unique_ptr<BlobStore>> {
                          absl::MutexLock lock(&mutex);
                          mutex.Await(absl::Condition(&may_answer));
                          return kAway;
                        },
                        .on_change = [](const absl::Status&) {},
                        .ends = ends.get_token(),
                        .patience = absl::InfiniteDuration()});
    EXPECT_FALSE(store.AwaitFirst(absl::Milliseconds(1), Never).has_value());
    EXPECT_FALSE(
        store.AwaitFirst(absl::InfiniteDuration(), [] { return true; }).has_value());
    std::thread waits([&] {
      EXPECT_THAT(std::string(store.List("").status().message()),
                  HasSubstr("a bucket has not answered yet"));
    });
    ends.request_stop();
    waits.join();
    absl::MutexLock lock(&mutex);
    may_answer = true;
  }
}

class BreakingWriter final : public BlobWriter {
 public:
  explicit BreakingWriter(const std::atomic<bool>& breaks) : breaks_(breaks) {}
  absl::Status Append(ByteView) override { return Try(); }
  absl::Status Finish(ByteView) override { return Try(); }

 private:
  absl::Status Try() const { return breaks_ ? kAway : absl::OkStatus(); }

  const std::atomic<bool>& breaks_;
};

// A store that fails when the test says so, and counts the calls.
class Breaking final : public BlobStore {
 public:
  Breaking(const std::atomic<bool>& breaks, std::atomic<int>& asked)
      : breaks_(breaks), asked_(asked) {}
  absl::StatusOr<std::vector<Blob>> List(const std::string&) override {
    ++asked_;
    if (breaks_) return kAway;
    return std::vector<Blob>();
  }
  absl::Status Read(const std::string&, uint64_t, MutableByteView) override {
    return absl::NotFoundError("x");
  }
  absl::StatusOr<std::unique_ptr<BlobWriter>> Create(const std::string&,
                                                     size_t) override {
    return std::make_unique<BreakingWriter>(breaks_);
  }
  absl::Status Claim(const std::string&) override { return absl::OkStatus(); }
  absl::Status Delete(const std::string&) override { return absl::OkStatus(); }
  std::string Describe() const override { return "breaking"; }

 private:
  const std::atomic<bool>& breaks_;
  std::atomic<int>& asked_;
};

TEST(AwaitedStore, CountsAsAwayFromAFailureToTheNextOpening) {
  std::atomic<bool> breaks = false;
  std::atomic<int> asked = 0;
  AwaitedStore store({.where = "a bucket",
                      .open = [&]() -> absl::StatusOr<std::unique_ptr<BlobStore>> {
                        if (breaks) return kAway;
                        return std::make_unique<Breaking>(breaks, asked);
                      },
                      .on_change = [](const absl::Status&) {},
                      .first_pause = absl::Milliseconds(1),
                      .longest_pause = absl::Milliseconds(1)});
  ASSERT_EQ(store.AwaitFirst(absl::InfiniteDuration(), Never), absl::OkStatus());
  ASSERT_TRUE(store.List("").ok());
  EXPECT_TRUE(absl::IsNotFound(store.Read("x", 0, {})));
  EXPECT_TRUE(store.Claim("x").ok()) << "what is missing is no reason";
  breaks = true;
  EXPECT_EQ(store.List("").status(), kAway);
  EXPECT_EQ(store.Claim("x"), kAway) << "nobody waits for the same again";
  EXPECT_EQ(store.List("").status(), kAway);
  EXPECT_EQ(asked, 2) << "the last one was not asked";
  breaks = false;
  while (!store.Claim("x").ok()) std::this_thread::yield();
  EXPECT_TRUE(store.List("").ok());
}

TEST(AwaitedStore, CountsAsAwayOnceAWriteHasFailed) {
  for (const bool at_the_end : {false, true}) {
    std::atomic<bool> breaks = false;
    std::atomic<int> asked = 0;
    AwaitedStore store({.where = "a bucket",
                        .open = [&]() -> absl::StatusOr<std::unique_ptr<BlobStore>> {
                          if (breaks) return kAway;
                          return std::make_unique<Breaking>(breaks, asked);
                        },
                        .on_change = [](const absl::Status&) {},
                        .first_pause = absl::Milliseconds(1),
                        .longest_pause = absl::Milliseconds(1)});
    ASSERT_EQ(store.AwaitFirst(absl::InfiniteDuration(), Never), absl::OkStatus());
    const auto writer = *store.Create("job/part", 0);
    EXPECT_TRUE(writer->Append({}).ok());
    breaks = true;
    EXPECT_EQ(at_the_end ? writer->Finish({}) : writer->Append({}), kAway);
    EXPECT_EQ(store.List("").status(), kAway);
    EXPECT_EQ(asked, 0) << "nobody waits for the same again";
  }
}

}  // namespace
}  // namespace syncline
