// Members that hold a view are told so instead of receiving it.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/codec/view_digest.h"
#include "comm/transport/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/shard_test_util.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;

// Members 0 to 2, one block.
class HeldByMembers : public ::testing::Test {
 protected:
  HeldByMembers() { rig_.Commit(1, {rig_.Member(0), rig_.Member(1), rig_.Member(2)}); }

  ShardOutputs PullHolding(uint32_t rank, uint64_t version,
                           const std::vector<float>& values) {
    const BlockLabel label = {{0, 0, static_cast<uint32_t>(values.size())}, 9, 9};
    MessageHeader header = rig_.Header(MessageKind::kPull, rank, 0, version);
    header.flags = kFlagHeld;
    SetDigest(header, ViewDigest(EncodeBlock(rig_.codec(), label, values,
                                             Checksum::kHeaderOnly, pool_),
                                 label.range.elements));
    return rig_.shard().Apply(ShardMessage{header, {}});
  }

  // Lists what is published: "held r0 v0", "sent r1 v0".
  static std::vector<std::string> Published(const ShardOutputs& outputs) {
    std::vector<std::string> lines;
    for (const ShardOutput& output : outputs) {
      const auto* reply = std::get_if<ShardReply>(&output);
      const bool is_view =
          reply != nullptr &&
          reply->header.kind == static_cast<uint16_t>(MessageKind::kPublish);
      if (!is_view) continue;
      EXPECT_EQ(reply->payload.empty(), reply->header.flags == kFlagHeld);
      lines.push_back(absl::StrCat(reply->payload.empty() ? "held" : "sent", " r",
                                   reply->rank, " v", reply->header.step));
    }
    return lines;
  }

  BufferPool pool_{1 << 20};
  ShardRig rig_{RigOptions{}};
};

TEST_F(HeldByMembers, IsNotSentToThem) {
  rig_.Seed(0, SomeValues(100, 1));
  EXPECT_THAT(Published(PullHolding(0, 0, SomeValues(100, 1))),
              ElementsAre("held r0 v0"));
  const auto other = PullHolding(1, 0, SomeValues(100, 2));
  EXPECT_THAT(Published(other), ElementsAre("sent r1 v0"));
  EXPECT_EQ(rig_.Decode(std::get<ShardReply>(other[0])),
            rig_.Decode(std::get<ShardReply>(rig_.Pull(2, 0, 0)[0])));
}

TEST_F(HeldByMembers, IsKnownWhenTheSeedComesLater) {
  PullHolding(1, 0, SomeValues(100, 1));
  PullHolding(2, 0, SomeValues(100, 2));
  EXPECT_THAT(Published(rig_.Seed(0, SomeValues(100, 1))),
              ElementsAre("held r1 v0", "sent r2 v0"));
}

TEST_F(HeldByMembers, IsComparedWithTheVersionThatIsThere) {
  rig_.Seed(0, SomeValues(100, 1));
  rig_.Push(0, 0, 0);
  EXPECT_THAT(Published(PullHolding(2, 1, SomeValues(100, 1))), ElementsAre());
  rig_.Push(1, 0, 0);
  EXPECT_THAT(Published(rig_.Push(2, 0, 0)),
              ElementsAre("sent r0 v1", "sent r1 v1", "sent r2 v1"));
  EXPECT_THAT(Published(PullHolding(2, 0, SomeValues(100, 1))),
              ElementsAre("sent r2 v1"));
  EXPECT_THAT(Published(PullHolding(2, 0, rig_.Weights(0))), ElementsAre("held r2 v1"));
}

}  // namespace
}  // namespace syncline
