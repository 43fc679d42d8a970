#include "server/checkpoint/blob_store_contract.h"

#include <atomic>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/checkpoint/catalog.h"

namespace syncline {

using ::testing::ElementsAre;

namespace {

ByteView BytesOf(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string Pattern(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 31 + i / 251);
  return text;
}

absl::Status Write(BlobStore& store, const std::string& name, const std::string& text) {
  const auto writer = store.Create(name, 0);
  if (!writer.ok()) return writer.status();
  const absl::Status appended = (*writer)->Append(BytesOf(text));
  return appended.ok() ? (*writer)->Finish({}) : appended;
}

absl::StatusOr<std::string> ReadBack(BlobStore& store, const std::string& name,
                                     uint64_t offset, size_t size) {
  std::string text(size, '\0');
  const absl::Status read =
      store.Read(name, offset, std::as_writable_bytes(std::span(text)));
  if (!read.ok()) return read;
  return text;
}

std::vector<std::string> NamesOf(const absl::StatusOr<std::vector<Blob>>& blobs) {
  EXPECT_TRUE(blobs.ok()) << blobs.status();
  std::vector<std::string> names;
  for (const Blob& blob : *blobs) names.push_back(blob.name);
  return names;
}

}  // namespace

TEST_P(BlobStoreContract, WhatWasWrittenIsReadByAnotherProcess) {
  for (const size_t size : {0, 1, 63, 64, 65, 65535, 65536, 65537, 300000}) {
    const std::string name = absl::StrCat("job/run1-step", size, "/manifest.json");
    const std::string text = Pattern(size);
    ASSERT_TRUE(Write(*store_, name, text).ok());
    const auto other = place_->Open();
    EXPECT_EQ(*ReadBack(*other, name, 0, size), text);
    if (size < 3) continue;
    EXPECT_EQ(*ReadBack(*other, name, 1, size - 2), text.substr(1, size - 2));
    EXPECT_EQ(*ReadBack(*other, name, size - 1, 1), text.substr(size - 1));
    EXPECT_EQ(*ReadBack(*other, name, 2, 0), "");
  }
}

TEST_P(BlobStoreContract, TheFrontIsFilledInLastWhateverComesBetween) {
  for (const size_t head_bytes : {0, 1, 100, 70000, 200000}) {
    for (const size_t appended : {0, 1, 65536, 150000}) {
      const auto writer = *store_->Create("job/part", head_bytes);
      const std::string body = Pattern(appended);
      for (size_t at = 0; at < appended; at += 50001) {
        ASSERT_TRUE(writer->Append(BytesOf(body.substr(at, 50001))).ok());
      }
      const std::string head = Pattern(head_bytes + 7).substr(7);
      ASSERT_TRUE(writer->Finish(BytesOf(head)).ok());
      EXPECT_EQ(*ReadBack(*store_, "job/part", 0, head_bytes + appended), head + body)
          << head_bytes << " and " << appended;
      EXPECT_EQ((*store_->List("job"))[0].bytes, head_bytes + appended);
    }
  }
}

TEST_P(BlobStoreContract, ABlobShowsWhenItIsFinishedAndNotBefore) {
  auto writer = *store_->Create("job/part", 10);
  ASSERT_TRUE(writer->Append(BytesOf(Pattern(300000))).ok());
  EXPECT_EQ(ReadBack(*store_, "job/part", 0, 1).status().code(),
            absl::StatusCode::kNotFound);
  ASSERT_TRUE(writer->Finish(BytesOf(Pattern(10))).ok());
  EXPECT_TRUE(ReadBack(*store_, "job/part", 0, 300010).ok());
}

TEST_P(BlobStoreContract, WhatIsGivenUpLeavesNothing) {
  auto writer = *store_->Create("job/part", 10);
  ASSERT_TRUE(writer->Append(BytesOf(Pattern(300000))).ok());
  writer.reset();
  EXPECT_THAT(NamesOf(store_->List("")), ElementsAre());
}

TEST_P(BlobStoreContract, FinishReplacesWhatWasThere) {
  ASSERT_TRUE(Write(*store_, "job/part", Pattern(300000)).ok());
  ASSERT_TRUE(Write(*store_, "job/part", "new").ok());
  EXPECT_EQ(*ReadBack(*store_, "job/part", 0, 3), "new");
  EXPECT_EQ((*store_->List("job"))[0].bytes, 3u);
}

TEST_P(BlobStoreContract, WhatIsShorterIsDataLossAndWhatIsMissingNotFound) {
  ASSERT_TRUE(Write(*store_, "job/part", "12345").ok());
  for (const auto& [offset, size] : {std::pair(0, 6), {4, 2}, {5, 1}, {9, 1}}) {
    EXPECT_EQ(ReadBack(*store_, "job/part", offset, size).status().code(),
              absl::StatusCode::kDataLoss)
        << offset << " and " << size;
  }
  EXPECT_EQ(ReadBack(*store_, "job/other", 0, 1).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadBack(*store_, "job/other", 0, 0).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_P(BlobStoreContract, AListHasWhatLiesInThatFolderInOrderOfNames) {
  for (const char* name : {"job/b/2", "job/b/10", "job/a", "job2/c", "job%20x/d"}) {
    ASSERT_TRUE(Write(*store_, name, name).ok());
  }
  EXPECT_THAT(NamesOf(store_->List("job")), ElementsAre("job/a", "job/b/10", "job/b/2"));
  EXPECT_THAT(NamesOf(store_->List("job/b")), ElementsAre("job/b/10", "job/b/2"));
  EXPECT_THAT(NamesOf(store_->List("")),
              ElementsAre("job%20x/d", "job/a", "job/b/10", "job/b/2", "job2/c"));
  EXPECT_THAT(NamesOf(store_->List("jo")), ElementsAre());
  EXPECT_LT(absl::AbsDuration((*store_->List("job"))[0].written -
                              (*store_->List("job2"))[0].written),
            absl::Hours(1));
}

TEST_P(BlobStoreContract, OfAllWhoClaimANameAtOnceOneGetsIt) {
  std::atomic<int> winners = 0, losers = 0;
  std::vector<std::thread> all;
  for (int i = 0; i < 8; ++i) {
    all.emplace_back([&] {
      const absl::Status claimed = place_->Open()->Claim("job/run1.claimed");
      if (claimed.ok()) ++winners;
      if (absl::IsAlreadyExists(claimed)) ++losers;
    });
  }
  for (std::thread& one : all) one.join();
  EXPECT_EQ(winners, 1);
  EXPECT_EQ(losers, 7);
  EXPECT_EQ(NamesOf(store_->List("job")).size(), 1u);
}

TEST_P(BlobStoreContract, WhatIsDeletedIsGoneAndMayBeDeletedAgain) {
  ASSERT_TRUE(Write(*store_, "job/a/1", "1").ok());
  ASSERT_TRUE(Write(*store_, "job/a/2", "2").ok());
  EXPECT_TRUE(store_->Delete("job/a/1").ok());
  EXPECT_TRUE(store_->Delete("job/a/1").ok());
  EXPECT_TRUE(store_->Delete("nothing/there").ok());
  EXPECT_THAT(NamesOf(store_->List("")), ElementsAre("job/a/2"));
}

TEST_P(BlobStoreContract, CheckpointsAreListedClaimedAndRetained) {
  for (const uint64_t step : {5, 10, 15, 20}) {
    const Manifest manifest = {.job = "night run/7", .name = {.run = 1, .step = step}};
    ASSERT_TRUE(PutManifest(*store_, manifest).ok());
  }
  ASSERT_TRUE(Retain(*store_, "night run/7", {.run = 1, .step = 20}, 2).ok());
  const auto kept = ListCheckpoints(*place_->Open(), FolderOf("night run/7"));
  ASSERT_TRUE(kept.ok()) << kept.status();
  ASSERT_EQ(kept->size(), 2u);
  EXPECT_EQ(kept->front().name.ToString(), "run1-step15");
  EXPECT_EQ(*ClaimRun(*store_, "night run/7", 2), 2u);
  EXPECT_EQ(*ClaimRun(*place_->Open(), "night run/7", 2), 3u);
}

}  // namespace syncline
