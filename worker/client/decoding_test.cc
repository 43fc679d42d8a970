// Tests of an exchange whose views are decoded late and in any order.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/base/tiling.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/client/exchange_test_util.h"

namespace syncline {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// One tensor of four blocks.
class Decoding : public ExchangeTest {
 protected:
  static constexpr uint32_t kBlocks = 4;
  static constexpr uint32_t kBlockElements = 2 * kTileElements;

  void Begin(SyncMode mode = {}, SeedRole role = SeedRole::kReceiver) {
    Make({});
    const Transfer fp32 = *ParseTransfer("fp32");
    options_.transfers = {{fp32, fp32}};
    options_.shard_of_block.assign(kBlocks, 0);
    options_.mode = mode;
    options_.role = role;
    options_.push_memory = [](size_t bytes) { return Buffer::Allocate(bytes).owner(); };
    weights_.assign(size_t{kBlocks} * kBlockElements, kDeclared);
    gradient_.assign(weights_.size(), 1.0f);
    exchange_ =
        std::make_unique<Exchange>(options_, std::vector<MemoryView>{weights_}, pool_);
    decodes_itself_ = false;
    See(exchange_->Start(now_));
    See(exchange_->Connected(0, now_));
  }
  // Publishes version 0 of all blocks, and pushes and acknowledges step 0.
  void BeginAndPush(SyncMode mode = {}) {
    Begin(mode);
    for (uint32_t block = 0; block < kBlocks; ++block) View(block, 0);
    ASSERT_TRUE(exchange_->IsReady(0));
    decodes_itself_ = true;
    See(exchange_->Push(0, gradient_, 1, now_));
    for (uint32_t block = 0; block < kBlocks; ++block) {
      Answer(From(MessageKind::kAck, block, 0));
    }
  }

  MessageHeader ViewHeader(uint32_t block, uint64_t version) {
    return From(MessageKind::kPublish, block, version);
  }
  // Returns a view whose values are all its version.
  Buffer ViewPayload(uint32_t block, uint64_t version) {
    const std::vector<float> values(kBlockElements, static_cast<float>(version));
    const BlockRange range{0, uint64_t{block} * kBlockElements, kBlockElements};
    return Gather(EncodeBlock(*options_.seed_codec, {range, version, 3}, values,
                              Checksum::kHeaderAndPayload, pool_));
  }
  Seen View(uint32_t block, uint64_t version) {
    return Answer(ViewHeader(block, version), ViewPayload(block, version).view());
  }
  // Delivers a view, and returns the request to decode it. The delivered bytes are freed
  // when this returns.
  std::shared_ptr<DecodeWork> AskedFor(uint32_t block, uint64_t version) {
    const Seen seen = View(block, version);
    EXPECT_THAT(seen.ready, IsEmpty());
    EXPECT_THAT(seen.decodings, SizeIs(1));
    return seen.decodings.empty() ? nullptr : seen.decodings[0];
  }
  Seen Made(const std::shared_ptr<DecodeWork>& work) { return See(Decode(*work)); }
  std::span<const float> WeightsOf(uint32_t block) const {
    return std::span(weights_).subspan(size_t{block} * kBlockElements, kBlockElements);
  }

  static constexpr float kDeclared = -7;
  std::vector<float> weights_;
};

TEST_F(Decoding, ATensorIsReadyOnceAllItsBlocksAreDecodedInWhateverOrder) {
  std::vector<uint32_t> order = {0, 1, 2, 3};
  do {
    BeginAndPush();
    std::vector<std::shared_ptr<DecodeWork>> works;
    for (uint32_t block = 0; block < kBlocks; ++block) {
      works.push_back(AskedFor(block, 1));
    }
    EXPECT_THAT(weights_, Each(0.0f)) << "nothing is decoded yet";
    for (const uint32_t block : order) {
      ASSERT_FALSE(exchange_->IsReady(0));
      const Seen seen = Made(works[block]);
      EXPECT_EQ(exchange_->version_of(block), 1u);
      const bool is_last = block == order.back();
      EXPECT_THAT(seen.ready, SizeIs(is_last ? 1 : 0));
    }
    EXPECT_THAT(weights_, Each(1.0f));
    EXPECT_EQ(exchange_->step(), 1u);
  } while (std::ranges::next_permutation(order).found);
}

TEST_F(Decoding, WhatIsRunButNotToldOfIsNotReady) {
  BeginAndPush();
  for (uint32_t block = 1; block < kBlocks; ++block) Made(AskedFor(block, 1));
  const auto work = AskedFor(0, 1);
  work->Run(workspace_);
  EXPECT_THAT(WeightsOf(0), Each(1.0f));
  EXPECT_THAT(See(exchange_->Tick(now_)).ready, IsEmpty());
  EXPECT_FALSE(exchange_->IsReady(0));
  EXPECT_THAT(See(exchange_->Decoded(*work, now_)).ready, ElementsAre(0u));
}

TEST_F(Decoding, AViewThatComesTwiceIsDecodedOnce) {
  BeginAndPush();
  const auto work = AskedFor(0, 1);
  EXPECT_THAT(View(0, 1).decodings, IsEmpty());
  EXPECT_THAT(View(0, 1).decodings, IsEmpty());
  EXPECT_THAT(Made(work).decodings, IsEmpty());
  EXPECT_EQ(exchange_->version_of(0), 1u);
}

// A worker that may run ahead uses every newer view.
TEST_F(Decoding, ANewerViewWaitsForTheOneBefore) {
  BeginAndPush({.kind = SyncMode::Kind::kSsp, .staleness = 1});
  ASSERT_TRUE(exchange_->IsReady(0)) << "it runs ahead";
  See(exchange_->Push(0, gradient_, 1, now_));
  for (uint32_t block = 0; block < kBlocks; ++block) {
    Answer(From(MessageKind::kAck, block, 1));
  }
  ASSERT_FALSE(exchange_->IsReady(0));
  const auto work = AskedFor(0, 1);
  EXPECT_THAT(View(0, 2).decodings, IsEmpty());
  const Seen next = Made(work);
  EXPECT_THAT(WeightsOf(0), Each(1.0f));
  ASSERT_THAT(next.decodings, SizeIs(1));
  for (uint32_t block = 1; block < kBlocks; ++block) {
    EXPECT_THAT(Made(AskedFor(block, 1)).ready, IsEmpty()) << "one is being written";
  }
  EXPECT_THAT(Made(next.decodings[0]).ready, ElementsAre(0u));
  EXPECT_EQ(exchange_->version_of(0), 2u);
  EXPECT_THAT(WeightsOf(0), Each(2.0f));
}

// The caller uses the weights, so the view waits for its next gradient.
TEST_F(Decoding, ANewerViewIsNotWrittenOnceTheTensorIsReady) {
  BeginAndPush({.kind = SyncMode::Kind::kSsp, .staleness = 1});
  See(exchange_->Push(0, gradient_, 1, now_));
  for (uint32_t block = 0; block < kBlocks; ++block) {
    Answer(From(MessageKind::kAck, block, 1));
  }
  for (uint32_t block = 1; block < kBlocks; ++block) Made(AskedFor(block, 1));
  const auto work = AskedFor(0, 1);
  EXPECT_THAT(View(0, 2).decodings, IsEmpty());
  const Seen done = Made(work);
  EXPECT_THAT(done.ready, ElementsAre(0u));
  EXPECT_THAT(done.decodings, IsEmpty());
  EXPECT_THAT(WeightsOf(0), Each(1.0f));
  EXPECT_THAT(View(1, 2).decodings, IsEmpty());
  EXPECT_THAT(WeightsOf(1), Each(1.0f));
}

TEST_F(Decoding, AnswersOfABlockAreHandledOnceItIsDecoded) {
  Begin();
  for (uint32_t block = 0; block < kBlocks; ++block) View(block, 0);
  decodes_itself_ = true;
  See(exchange_->Push(0, gradient_, 1, now_));
  EXPECT_FALSE(exchange_->AllHeld());
  const auto work = AskedFor(0, 1);
  EXPECT_EQ(exchange_->step(), 0u);
  Answer(From(MessageKind::kAck, 0, 0));
  const size_t before = exchange_->unacknowledged_bytes(0);
  Made(work);
  EXPECT_LT(exchange_->unacknowledged_bytes(0), before) << "the view says the same";
  EXPECT_EQ(exchange_->version_of(0), 1u);
}

// While a view is decoded, its block is neither requested nor pushed.
TEST_F(Decoding, NothingIsSentAgainOrAskedForMeanwhile) {
  BeginAndPush();
  const auto work = AskedFor(0, 1);
  EXPECT_THAT(Reconnect().Messages(), Not(Contains(std::pair{MessageKind::kPull, 0u})));
  EXPECT_THAT(See(exchange_->Tick(now_)).sends, IsEmpty());
  EXPECT_THAT(See(exchange_->Probe(0)).sends, SizeIs(::testing::Le(1u)));
  exchange_->Replaced(0, 4);
  EXPECT_THAT(See(exchange_->Connected(0, now_)).Messages(),
              Not(Contains(std::pair{MessageKind::kPush, 0u})));
  Made(work);
  EXPECT_THAT(See(exchange_->Tick(now_)).Messages(), IsEmpty());
  EXPECT_EQ(exchange_->version_of(0), 1u);
}

TEST_F(Decoding, WhatIsDamagedIsAskedForAnew) {
  BeginAndPush();
  const Buffer payload = ViewPayload(0, 1);
  payload.data()[payload.size() - 1] ^= std::byte{1};
  const Seen seen = Answer(ViewHeader(0, 1), payload.view());
  ASSERT_THAT(seen.decodings, SizeIs(1));
  Made(seen.decodings[0]);
  EXPECT_EQ(exchange_->version_of(0), 0u);
  EXPECT_THAT(WeightsOf(0), Each(0.0f));
  now_ += absl::Seconds(1);
  EXPECT_THAT(See(exchange_->Tick(now_)).Messages(),
              ElementsAre(std::pair{MessageKind::kPull, 0u}));
  Made(AskedFor(0, 1));
  EXPECT_EQ(exchange_->version_of(0), 1u);
}

// A view that follows a damaged one is used.
TEST_F(Decoding, WhatWaitedBehindADamagedViewTakesItsPlace) {
  BeginAndPush();
  const Buffer payload = ViewPayload(0, 1);
  payload.data()[payload.size() - 1] ^= std::byte{1};
  const Seen damaged = Answer(ViewHeader(0, 1), payload.view());
  ASSERT_THAT(damaged.decodings, SizeIs(1));
  EXPECT_THAT(View(0, 1).decodings, IsEmpty());
  const Seen next = Made(damaged.decodings[0]);
  ASSERT_THAT(next.decodings, SizeIs(1));
  Made(next.decodings[0]);
  EXPECT_EQ(exchange_->version_of(0), 1u);
  EXPECT_THAT(WeightsOf(0), Each(1.0f));
}

// A server sends the same view again and again.
TEST_F(Decoding, FewMessagesOfABlockWaitMeanwhile) {
  BeginAndPush();
  const Buffer payload = ViewPayload(0, 1);
  payload.data()[payload.size() - 1] ^= std::byte{1};
  std::vector<std::shared_ptr<DecodeWork>> asked =
      Answer(ViewHeader(0, 1), payload.view()).decodings;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_THAT(Answer(ViewHeader(0, 1), payload.view()).decodings, IsEmpty());
  }
  size_t decoded = 0;
  for (; !asked.empty(); ++decoded) asked = Made(asked[0]).decodings;
  EXPECT_EQ(decoded, 1 + Exchange::kMaxDeferred);
  Made(AskedFor(0, 1));
  EXPECT_EQ(exchange_->version_of(0), 1u);
}

// The server has the weights of this block, so this worker must not seed them.
TEST_F(Decoding, ABlockWhoseFirstViewIsHereIsNotSeeded) {
  Begin();
  decodes_itself_ = true;
  const auto work = AskedFor(0, 0);
  Seen seen = See(exchange_->EpochChanged(4, SeedRole::kSeeder, now_));
  EXPECT_THAT(seen.Messages(), Not(Contains(std::pair{MessageKind::kSeed, 0u})));
  EXPECT_THAT(seen.Messages(), Contains(std::pair{MessageKind::kSeed, 1u}));
  Made(work);
  EXPECT_THAT(WeightsOf(0), Each(0.0f));
}

// The view of a seed arrives while the weights are read to send the seed again.
TEST_F(Decoding, WeightsThatAreReadAreNotWritten) {
  Begin({}, SeedRole::kSeeder);
  decodes_itself_ = true;
  encodes_itself_ = true;
  const Seen again = Reconnect();
  ASSERT_THAT(again.encodings, SizeIs(1));
  const uint32_t block = again.encodings[0]->contribution().block;
  EXPECT_THAT(View(block, 0).decodings, IsEmpty());
  const Seen read = See(Encode(*again.encodings[0]));
  ASSERT_THAT(read.decodings, SizeIs(1));
  EXPECT_THAT(WeightsOf(block), Each(kDeclared));
  Made(read.decodings[0]);
  EXPECT_THAT(WeightsOf(block), Each(0.0f));
}

TEST_F(Decoding, GivesOutNothingOnceItHasFailed) {
  BeginAndPush();
  const auto work = AskedFor(0, 1);
  EXPECT_THAT(Refuse(RefuseCode::kNotMember, 1, 0, 9).failures, SizeIs(1));
  const Seen late = Made(work);
  EXPECT_THAT(late.sends, IsEmpty());
  EXPECT_THAT(late.ready, IsEmpty());
}

using DecodingDeathTest = Decoding;

TEST_F(DecodingDeathTest, AnAnswerIsTakenOnce) {
  BeginAndPush();
  const auto work = AskedFor(0, 1);
  Made(work);
  EXPECT_DEATH(exchange_->Decoded(*work, now_), "decoding");
}

}  // namespace
}  // namespace syncline
