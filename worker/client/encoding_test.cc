// Tests of an exchange whose blocks are encoded late and in any order.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
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

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// One tensor of four blocks.
class Encoding : public ExchangeTest {
 protected:
  static constexpr uint32_t kBlocks = 4;
  static constexpr uint32_t kBlockElements = 2 * kTileElements;

  void Begin(const std::string& codec, uint32_t at_once, SyncMode mode = {}) {
    Make({});
    const Transfer push = *ParseTransfer(codec);
    const Transfer fp32 = *ParseTransfer("fp32");
    options_.transfers = {{push, fp32}};
    options_.shard_of_block.assign(kBlocks, 0);
    options_.encodings_at_once = at_once;
    options_.mode = mode;
    if (lends_) {
      options_.keeper_of = [this](ByteView bytes) -> std::shared_ptr<const void> {
        const bool is_gradient =
            bytes.data() == std::as_bytes(std::span(gradient_)).data();
        return is_gradient ? keeper_ : nullptr;
      };
      options_.push_memory = [](size_t bytes) { return Buffer::Allocate(bytes).owner(); };
    }
    weights_.assign(size_t{kBlocks} * kBlockElements, 0.0f);
    gradient_.resize(weights_.size());
    for (size_t i = 0; i < gradient_.size(); ++i) {
      gradient_[i] = static_cast<float>(i * 2654435761u % 1009) / 1009 - 0.5f;
    }
    exchange_ =
        std::make_unique<Exchange>(options_, std::vector<MemoryView>{weights_}, pool_);
    ASSERT_EQ(exchange_->blocks(), kBlocks);
    See(exchange_->Start(now_));
    See(exchange_->Connected(0, now_));
    encodes_itself_ = true;
    for (uint32_t block = 0; block < kBlocks; ++block) View(block, 0);
    ASSERT_TRUE(exchange_->IsReady(0));
  }

  Seen View(uint32_t block, uint64_t version, uint16_t flags = 0) {
    const std::vector<float> values(kBlockElements, static_cast<float>(version));
    const BlockRange range{0, block * kBlockElements, kBlockElements};
    const Buffer payload =
        Gather(EncodeBlock(*options_.seed_codec, {range, version, 3}, values,
                           Checksum::kHeaderAndPayload, pool_));
    MessageHeader header = From(MessageKind::kPublish, block, version);
    header.flags = flags;
    return Answer(header, payload.view());
  }

  Seen Push() { return See(exchange_->Push(0, gradient_, 1, now_)); }
  Seen Made(const std::shared_ptr<EncodeWork>& work) { return See(Encode(*work)); }
  void Acknowledge() {
    for (uint32_t block = 0; block < kBlocks; ++block) {
      Answer(From(MessageKind::kAck, block, exchange_->step()));
    }
  }

  std::vector<float> weights_;
  bool lends_ = false;
  std::shared_ptr<const void> keeper_ = std::make_shared<int>();
};

// ---- Gradients that servers read in place ----

class LentGradient : public Encoding {
 protected:
  void Begin(const std::string& codec, SyncMode mode = {}) {
    lends_ = true;
    Encoding::Begin(codec, 1, mode);
    encodes_itself_ = false;
  }
  // Returns the addresses of the values of all blocks that are sent.
  static std::vector<const void*> Places(const Seen& seen) {
    std::vector<const void*> places;
    for (const ExchangeSend& send : seen.sends) {
      places.push_back(send.payload.back().data);
    }
    return places;
  }
  const void* Block(uint32_t number) const {
    return gradient_.data() + size_t{number} * kBlockElements;
  }
};

TEST_F(LentGradient, IsSentFromWhereItLiesByItsKeeper) {
  Begin("fp32");
  const Seen seen = Push();
  EXPECT_THAT(Places(seen), ElementsAre(Block(0), Block(1), Block(2), Block(3)));
  for (const ExchangeSend& send : seen.sends) {
    EXPECT_EQ(send.payload.back().owner, keeper_);
    EXPECT_TRUE(send.borrows_gradient);
  }
}

TEST_F(LentGradient, IsTheCallersAgainOnceAllHaveLetGoOfIt) {
  Begin("fp32");
  Push();
  Acknowledge();
  std::vector<uint32_t> ready;
  for (uint32_t block = 0; block < kBlocks; ++block) {
    for (const uint32_t tensor : View(block, 1).ready) ready.push_back(tensor);
  }
  EXPECT_THAT(ready, IsEmpty());
  ASSERT_THAT(exchange_->UnfinishedGradients(), SizeIs(1));
  EXPECT_EQ(exchange_->UnfinishedGradients()[0].data(),
            std::as_bytes(std::span(gradient_)).data());
  for (uint32_t block = 0; block < kBlocks; ++block) {
    EXPECT_THAT(ready, IsEmpty());
    ready = See(exchange_->SendDone(block)).ready;
  }
  EXPECT_THAT(ready, ElementsAre(0));
  EXPECT_THAT(exchange_->UnfinishedGradients(), IsEmpty());
}

TEST_F(LentGradient, IsSentAgainFromWhereItLies) {
  Begin("fp32");
  Push();
  EXPECT_THAT(Places(Reconnect()), ElementsAre(Block(0), Block(1), Block(2), Block(3)));
}

TEST_F(LentGradient, IsCopiedWhereTheMemoryIsNotWhatIsSent) {
  Begin("bf16");
  for (const ExchangeSend& send : Push().sends) EXPECT_FALSE(send.borrows_gradient);
}

TEST_F(LentGradient, IsCopiedWhereWorkersMayRunAheadOrBeLeftOut) {
  for (const SyncMode& mode :
       {SyncMode{.kind = SyncMode::Kind::kSsp, .staleness = 0},
        SyncMode{.kind = SyncMode::Kind::kSsp, .staleness = 2},
        SyncMode{.kind = SyncMode::Kind::kAsp}, SyncMode{.quorum = 1}}) {
    Begin("fp32", mode);
    const Seen seen = Push();
    EXPECT_THAT(seen.sends, Not(IsEmpty()));
    for (const ExchangeSend& send : seen.sends) EXPECT_FALSE(send.borrows_gradient);
  }
}

TEST_F(Encoding, TheFirstBlockLeavesBeforeTheNextOneIsEncoded) {
  Begin("bf16", 1);
  Seen seen = Push();
  for (uint32_t block = 0; block < kBlocks; ++block) {
    EXPECT_THAT(seen.sends, IsEmpty());
    ASSERT_THAT(seen.encodings, SizeIs(1)) << "one at a time";
    EXPECT_EQ(seen.encodings[0]->contribution().block, block);
    const std::shared_ptr<EncodeWork> work = seen.encodings[0];
    seen = Made(work);
    EXPECT_THAT(seen.Messages(), ElementsAre(std::pair{MessageKind::kPush, block}));
    seen.sends.clear();
  }
  EXPECT_THAT(seen.encodings, IsEmpty());
}

TEST_F(Encoding, SeveralAreMadeAtOnceAndLeaveAsTheyCome) {
  Begin("bf16", 3);
  const Seen seen = Push();
  ASSERT_THAT(seen.encodings, SizeIs(3));
  const Seen second = Made(seen.encodings[1]);
  EXPECT_THAT(second.Messages(), ElementsAre(std::pair{MessageKind::kPush, 1u}));
  ASSERT_THAT(second.encodings, SizeIs(1));
  EXPECT_EQ(second.encodings[0]->contribution().block, 3u);
  EXPECT_THAT(Made(seen.encodings[2]).Messages(),
              ElementsAre(std::pair{MessageKind::kPush, 2u}));
  EXPECT_FALSE(exchange_->AllHeld());
}

// Compares the bytes of three steps, because the error feedback of one step is sent with
// the next.
TEST_F(Encoding, TheOrderDoesNotShowInTheBits) {
  for (const char* codec :
       {"bf16-stochastic", "onebit:min_elements=0,vectors=1",
        "dgc:ratio=0.01,min_elements=0,vectors=1", "demo:min_elements=0,vectors=1",
        "int4-stochastic:min_elements=0,vectors=1",
        "powersgd:rank=2,min_elements=0,vectors=1",
        "topk:ratio=0.01,scope=tensor,min_elements=0,vectors=1"}) {
    const auto pushed = [&](bool reversed) {
      Begin(codec, kBlocks);
      std::vector<std::vector<std::byte>> bytes;
      for (uint64_t step = 0; step < 3; ++step) {
        std::vector<std::vector<std::byte>> of_step(kBlocks);
        Seen seen = Push();
        while (!seen.encodings.empty()) {
          if (reversed) std::ranges::reverse(seen.encodings);
          Seen next;
          for (const auto& work : seen.encodings) work->Run(workspace_);
          for (const auto& work : seen.encodings) {
            Seen more = See(exchange_->Encoded(*work, now_));
            std::ranges::move(more.encodings, std::back_inserter(next.encodings));
            for (const ExchangeSend& send : more.sends) {
              const Buffer payload = Gather(send.payload);
              of_step[send.header.block] = {payload.data(),
                                            payload.data() + payload.size()};
            }
          }
          seen = std::move(next);
        }
        std::ranges::move(of_step, std::back_inserter(bytes));
        Acknowledge();
        for (uint32_t block = 0; block < kBlocks; ++block) View(block, step + 1);
        EXPECT_TRUE(exchange_->IsReady(0)) << codec;
      }
      return bytes;
    };
    const auto in_order = pushed(false);
    EXPECT_THAT(in_order, Each(Not(IsEmpty()))) << codec;
    EXPECT_EQ(pushed(true), in_order) << codec;
  }
}

TEST_F(Encoding, OfAWholeTensorsThresholdIsFoundBeforeAnyBlock) {
  Begin("topk:ratio=0.01,scope=tensor,min_elements=0,vectors=1", kBlocks);
  const Seen seen = Push();
  ASSERT_THAT(seen.encodings, SizeIs(1));
  EXPECT_TRUE(seen.encodings[0]->IsSurvey());
  const Seen blocks = Made(seen.encodings[0]);
  EXPECT_THAT(blocks.encodings, SizeIs(kBlocks));
}

TEST_F(Encoding, WhatIsEncodedTakesRoomAlready) {
  Begin("bf16", kBlocks);
  exchange_->SetRoom(0, 3 * kBlockElements);  // a block in FP32 has 4 * kBlockElements
  Seen seen = Push();
  ASSERT_THAT(seen.encodings, SizeIs(1)) << "how long it gets is not known yet";
  seen = Made(seen.encodings[0]);
  EXPECT_THAT(seen.sends, SizeIs(1));
  EXPECT_THAT(seen.encodings, SizeIs(1)) << "there is room for a part of it";
  seen = Made(seen.encodings[0]);
  EXPECT_THAT(seen.sends, SizeIs(1));
  EXPECT_THAT(seen.encodings, IsEmpty());
  exchange_->SetRoom(0, 1);
  EXPECT_THAT(See(exchange_->Pump(now_)).encodings, SizeIs(1));
}

TEST_F(Encoding, WhatIsEncodedTakesAsMuchRoomAsLastTime) {
  Begin("bf16", kBlocks);
  for (const auto& work : Push().encodings) Made(work);
  Acknowledge();
  for (uint32_t block = 0; block < kBlocks; ++block) View(block, 1);
  ASSERT_TRUE(exchange_->IsReady(0));
  exchange_->SetRoom(0, 3 * kBlockElements);
  EXPECT_THAT(Push().encodings, SizeIs(2)) << "each was a little over 2 times as long";
}

TEST_F(Encoding, WhatIsEncodedIsNextAndNotBehindWhatIsHeld) {
  Begin("bf16", kBlocks);
  const Seen seen = Push();
  ASSERT_THAT(seen.encodings, SizeIs(kBlocks));
  Made(seen.encodings[1]);
  Answer(From(MessageKind::kAck, 1, 0));
  const size_t held = exchange_->held_bytes(0);
  EXPECT_GT(held, 0u);
  EXPECT_EQ(exchange_->HeldInFront(0, 2 * held), 0u) << "block 0 is next";
  Made(seen.encodings[0]);
  EXPECT_EQ(exchange_->HeldInFront(0, 2 * held), held) << "block 2 is next";
}

TEST_F(Encoding, WaitsForTheNextConnection) {
  for (const char* codec : {"bf16", "onebit:min_elements=0,vectors=1"}) {
    Begin(codec, 2);
    const Seen seen = Push();
    ASSERT_THAT(seen.encodings, SizeIs(2));
    exchange_->Disconnected(0);
    const Seen alone = Made(seen.encodings[1]);
    EXPECT_THAT(alone.sends, IsEmpty());
    EXPECT_THAT(alone.encodings, IsEmpty());
    Seen again = See(exchange_->Connected(0, now_));
    EXPECT_THAT(Made(seen.encodings[0]).Messages(),
                ElementsAre(std::pair{MessageKind::kPush, 0u}));
    const bool is_kept = options_.transfers[0].push.compresses();
    if (is_kept) {
      EXPECT_THAT(again.Messages(), ElementsAre(std::pair{MessageKind::kPush, 1u}));
    } else {
      ASSERT_THAT(again.encodings, SizeIs(1));
      EXPECT_EQ(again.encodings[0]->contribution().block, 1u);
    }
    EXPECT_EQ(exchange_->stats().resent_blocks, 0u);
  }
}

TEST_F(Encoding, LeavesUnderTheEpochOfTheDay) {
  for (const char* codec : {"bf16", "onebit:min_elements=0,vectors=1"}) {
    Begin(codec, 1);
    Seen seen = Push();
    See(exchange_->EpochChanged(8, SeedRole::kReceiver, now_));
    seen = Made(seen.encodings.at(0));
    if (seen.sends.empty()) seen = Made(seen.encodings.at(0));
    ASSERT_THAT(seen.sends, SizeIs(1));
    EXPECT_EQ(seen.sends[0].header.epoch, 8u);
    const Buffer bytes = Gather(seen.sends[0].payload);
    const BlockLabel label = {{0, 0, kBlockElements}, 0, 8};
    EXPECT_TRUE(
        ParseBlock(bytes.view(), label, options_.transfers[0].push.Accepted()).ok())
        << codec;
  }
}

// A view arrives that includes the contribution, while that is being encoded again.
TEST_F(Encoding, AGradientThatIsReadIsNotTheProgramsYet) {
  Begin("bf16", kBlocks);
  for (const auto& work : Push().encodings) Made(work);
  Acknowledge();
  exchange_->Replaced(0, 4);
  Seen again = See(exchange_->Connected(0, now_));
  ASSERT_THAT(again.encodings, SizeIs(kBlocks));
  for (uint32_t block = 0; block < kBlocks; ++block) {
    EXPECT_THAT(View(block, 1).ready, IsEmpty());
  }
  for (uint32_t block = 0; block < kBlocks; ++block) {
    EXPECT_FALSE(exchange_->IsReady(0));
    again.ready = Made(again.encodings[block]).ready;
  }
  EXPECT_THAT(again.ready, ElementsAre(0u));
  EXPECT_EQ(exchange_->stats().resent_blocks, 0u) << "nobody wants them";
}

// A block is acknowledged while it is encoded again, and then its server is replaced.
TEST_F(Encoding, NoBlockIsEncodedTwiceAtOnce) {
  Begin("bf16", 2 * kBlocks);
  for (const auto& work : Push().encodings) Made(work);
  const Seen again = Reconnect();
  ASSERT_THAT(again.encodings, SizeIs(kBlocks));
  Acknowledge();
  exchange_->Replaced(0, 4);
  EXPECT_THAT(See(exchange_->Connected(0, now_)).encodings, IsEmpty());
  for (uint32_t block = 0; block < kBlocks; ++block) {
    const Seen anew = Made(again.encodings[block]);
    ASSERT_THAT(anew.encodings, SizeIs(1));
    EXPECT_EQ(anew.encodings[0]->contribution().block, block);
    EXPECT_THAT(Made(anew.encodings[0]).Messages(),
                ElementsAre(std::pair{MessageKind::kPush, block}));
  }
}

// The worker's previous process had sent the contribution, and died.
TEST_F(Encoding, WhatWasMadeInVainIsNotSentInTheNextStep) {
  Begin("onebit:min_elements=0,vectors=1", kBlocks);
  const Seen seen = Push();
  ASSERT_THAT(seen.encodings, SizeIs(kBlocks));
  for (uint32_t block = 0; block < kBlocks; ++block) View(block, 1);
  for (const auto& work : seen.encodings) EXPECT_THAT(Made(work).sends, IsEmpty());
  ASSERT_TRUE(exchange_->IsReady(0));
  const Seen next = Push();
  EXPECT_THAT(next.sends, IsEmpty());
  ASSERT_THAT(next.encodings, SizeIs(kBlocks));
  for (const auto& work : next.encodings) {
    EXPECT_EQ(work->contribution().label.step, 1u);
  }
}

TEST_F(Encoding, GivesOutNothingOnceItHasFailed) {
  Begin("bf16", 2);
  const Seen seen = Push();
  EXPECT_THAT(Refuse(RefuseCode::kNotMember, 0, 0, 9).failures, SizeIs(1));
  const Seen late = Made(seen.encodings[0]);
  EXPECT_THAT(late.sends, IsEmpty());
  EXPECT_THAT(late.encodings, IsEmpty());
}

// The other workers went on while two of four blocks were being encoded. In the end the
// error feedback is its previous value plus the gradient, in encoded blocks and others.
TEST_F(Encoding, WhatComesTooLateIsTakenBackOnceItIsMade) {
  Begin("onebit:min_elements=0,vectors=1", 2, {.quorum = 1});
  for (uint32_t block = 0; block < kBlocks; ++block) View(block, 0);
  const Seen seen = Push();
  ASSERT_THAT(seen.encodings, SizeIs(2));
  for (uint32_t block = 0; block < kBlocks; ++block) {
    EXPECT_THAT(View(block, 1).ready, IsEmpty());
  }
  EXPECT_EQ(exchange_->stats().late_steps, 1u);
  EXPECT_THAT(Made(seen.encodings[1]).ready, IsEmpty());
  EXPECT_FALSE(exchange_->IsReady(0));
  const Seen done = Made(seen.encodings[0]);
  EXPECT_THAT(done.ready, ElementsAre(0u));
  EXPECT_THAT(done.sends, IsEmpty());
  const std::span<const float> kept = exchange_->memory(0).residual();
  ASSERT_EQ(kept.size(), gradient_.size());
  float largest = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    largest = std::max(largest, std::abs(kept[i] - gradient_[i]));
  }
  EXPECT_LT(largest, 1e-5f);
}

}  // namespace
}  // namespace syncline
