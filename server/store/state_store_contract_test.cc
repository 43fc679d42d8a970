#include "server/store/state_store_contract.h"

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace syncline {

TEST_P(StateStoreContract, KnowsNoKeyAtFirst) {
  const auto loaded = store_->Load("epoch");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_FALSE(loaded->has_value());
}

TEST_P(StateStoreContract, ReturnsAnyBytesWithTheirVersion) {
  std::string bytes(70000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31);
  for (const std::string& value : {std::string(), std::string("a\0b", 3), bytes}) {
    const std::string key = absl::StrCat("bytes/", value.size());
    ASSERT_EQ(*store_->CompareAndSet(key, kAbsent, value), 1);
    const auto loaded = store_->Load(key);
    ASSERT_TRUE(loaded.ok() && loaded->has_value());
    EXPECT_EQ((*loaded)->value, value);
    EXPECT_EQ((*loaded)->version, 1);
  }
}

TEST_P(StateStoreContract, RefusesAWriterThatSawAnOlderVersion) {
  ASSERT_EQ(*store_->CompareAndSet("epoch", kAbsent, "1"), 1);
  ASSERT_EQ(*store_->CompareAndSet("epoch", 1, "2"), 2);
  for (const int64_t stale : {kAbsent, int64_t{1}, int64_t{3}, int64_t{-1}}) {
    EXPECT_EQ(store_->CompareAndSet("epoch", stale, "9").status().code(),
              absl::StatusCode::kAborted)
        << stale;
  }
  EXPECT_EQ((*store_->Load("epoch"))->value, "2");
}

TEST_P(StateStoreContract, RefusesAVersionOfAKeyThatIsAbsent) {
  EXPECT_EQ(store_->CompareAndSet("nothing", 1, "x").status().code(),
            absl::StatusCode::kAborted);
  EXPECT_FALSE(store_->Load("nothing")->has_value());
}

TEST_P(StateStoreContract, KeepsKeysApart) {
  ASSERT_TRUE(store_->CompareAndSet("job/a", kAbsent, "A").ok());
  ASSERT_TRUE(store_->CompareAndSet("job/a ", kAbsent, "A with a space").ok());
  ASSERT_TRUE(store_->CompareAndSet("job/%", kAbsent, "percent").ok());
  EXPECT_EQ((*store_->Load("job/a"))->value, "A");
  EXPECT_EQ((*store_->Load("job/%"))->value, "percent");
}

TEST_P(StateStoreContract, ListsWhatBeginsSo) {
  for (const char* key : {"job/1", "job/12", "jobs", "other"}) {
    ASSERT_TRUE(store_->CompareAndSet(key, kAbsent, key).ok());
  }
  ASSERT_EQ(*store_->CompareAndSet("job/12", 1, std::string("a\0b", 3)), 2);
  const auto found = store_->List("job/");
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->size(), 2u);
  EXPECT_EQ(found->at("job/1").value, "job/1");
  EXPECT_EQ(found->at("job/12").version, 2);
  EXPECT_EQ(found->at("job/12").value, std::string("a\0b", 3));
}

TEST_P(StateStoreContract, ErasesOnlyTheVersionThatWasSeen) {
  ASSERT_TRUE(store_->CompareAndSet("job/1", kAbsent, "old").ok());
  ASSERT_TRUE(store_->CompareAndSet("job/1", 1, "new").ok());
  EXPECT_EQ(store_->Erase("job/1", 1).code(), absl::StatusCode::kAborted);
  EXPECT_EQ((*store_->Load("job/1"))->value, "new");
  EXPECT_TRUE(store_->Erase("job/1", 2).ok());
  EXPECT_FALSE(store_->Load("job/1")->has_value());
  EXPECT_EQ(store_->Erase("job/1", 2).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(*store_->CompareAndSet("job/1", kAbsent, "again"), 1);
}

TEST_P(StateStoreContract, RefusesAValueBeyondTheLimit) {
  const std::string huge(kMaxStateValueBytes + 1, 'x');
  EXPECT_EQ(store_->CompareAndSet("huge", kAbsent, huge).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(store_->Load("huge")->has_value());
}

TEST_P(StateStoreContract, GivesEachVersionToExactlyOneOfManyWriters) {
  constexpr int kThreads = 4;
  constexpr int kWins = 25;
  std::vector<std::thread> writers;
  for (int i = 0; i < kThreads; ++i) {
    writers.emplace_back([this] {
      for (int wins = 0; wins < kWins;) {
        const auto seen = store_->Load("count");
        ASSERT_TRUE(seen.ok());
        const int64_t version = seen->has_value() ? (*seen)->version : kAbsent;
        if (store_->CompareAndSet("count", version, absl::StrCat(version + 1)).ok())
          ++wins;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  const auto final = store_->Load("count");
  EXPECT_EQ((*final)->version, kThreads * kWins);
  EXPECT_EQ((*final)->value, absl::StrCat(kThreads * kWins));
}

}  // namespace syncline
