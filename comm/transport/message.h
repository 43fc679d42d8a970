// The data-plane message header: 64 bytes, little-endian, before every payload
// (docs/wire_format.md).
//
// (job, rank, incarnation, step, block) names a contribution; `epoch` is the membership
// under which it was sent; `session_key` was handed to the member and to the servers by
// the coordinator, so that nobody else can speak for that rank. `header_crc` catches what
// is not a Syncline message at all.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "comm/base/buffer.h"
#include "comm/base/limits.h"
#include "comm/transport/traffic.h"

namespace syncline {

inline constexpr uint32_t kMessageMagic = 0x434e5953;  // "SYNC"
inline constexpr uint16_t kMessageVersion = 2;

enum class MessageKind : uint16_t {
  kHello = 1,  // worker -> shard: payload is the worker's transport address; `step`
               // tells this connection from others
  kSeed = 2,   // worker -> shard: initial values of a block (tile frames, FP32)
  kPush = 3,   // worker -> shard: a contribution (tile frames)
  kPull = 4,   // worker -> shard: send me the block once its version is at least `step`
  kAck = 5,    // shard -> worker: seed or contribution for `step` is held, do not send it
               // again
  kRefuse = 6,       // shard -> worker: `code` says why; `epoch` is the shard's
  kPublish = 7,      // shard -> worker: the block at version `step` (tile frames)
  kPullAverage = 8,  // worker -> shard: send me the block's averaged weights
  kAverage = 9,      // shard -> worker: these, at version `step` (tile frames, FP32)
  kWelcome = 10,     // shard -> worker: answers the kHello with that `step`
  kNoted = 11,      // shard -> worker: the answer to this message will come, or is on its
                    // way; what it brought need not be sent again
  kSeedState = 12,  // worker -> shard: array `samples` of the optimizer's state that a
                    // block begins with, after `shard` updates (tile frames, FP32)
  kPullState = 13,  // worker -> shard: send me array `samples` of the optimizer's state
  kState = 14,      // shard -> worker: this one, at version `step`, after `shard` updates
  kBackupHello = 15,  // shard -> its backup: payload is the shard's transport address
  kRecord = 16,       // shard -> its backup: piece `block` of `samples` of record `step`;
                      // `epoch` is the CRC-32C of the piece
  kRecordAck = 17,    // backup -> shard: all records up to `step` are here
};

// Why a shard refuses a message. Part of the wire format.
enum class RefuseCode : uint16_t {
  kNone = 0,
  kStaleEpoch = 1,    // sender is behind: adopt the epoch of the refusal and send again
  kFutureEpoch = 2,   // shard is behind: send again a little later
  kNotMember = 3,     // this rank and incarnation was dropped or never joined
  kUnknownBlock = 4,  // no such tensor or block on this shard
  kMalformed = 5,     // frames do not parse or do not fit the tensor
  kWrongStep = 6,     // neither the current step nor a repetition of a counted one
  kUnauthenticated = 7,  // session key does not belong to that rank
  kNotSeeded = 8,        // block has no values yet
  kNoAverage = 9,        // the job keeps no averaged weights, or no such state
  kTooLate = 10,         // the step was closed without this contribution: take it back
};

// On a kPublish without a payload: the weights are those of the version before.
inline constexpr uint16_t kFlagUnchanged = 1;
// On a kPush: what a leaving worker had kept of earlier gradients, in FP32. It counts
// even when the sender is no member any more, with the weight of `samples`, which however
// are not among those that the mean is taken over.
inline constexpr uint16_t kFlagParting = 2;
// On a kPull: what was sent on this connection could not be used, send it anew. Without it
// a shard sends each version of a block's view once over a connection, however often it is
// asked. On a kPullAverage or kPullState: an answer that still waits is made anew.
inline constexpr uint16_t kFlagAnew = 4;
// On a kPush: `shard` is what the learning rate of this step is multiplied with, as the
// bits of a float from 0 to kMaxRateFactor. Of all who contribute, the life that joined
// first decides. Without the flag: 1.
inline constexpr uint16_t kFlagRate = 8;
inline constexpr float kMaxRateFactor = 1e6f;
// On a kPull: the worker has values of its own, of which `samples` and `shard` are the
// digest (SetDigest). On a kPublish without a payload: the view is what these values are
// when they are published.
inline constexpr uint16_t kFlagHeld = 16;
// In jobs with a quorum. On a kPublish: what its receiver gave to the step before this
// version is part of it. On a kAck: of the step that is acknowledged.
inline constexpr uint16_t kFlagCounted = 32;

const char* RefuseCodeName(RefuseCode code);

struct MessageHeader {
  uint32_t magic = kMessageMagic;
  uint16_t version = kMessageVersion;
  uint16_t kind = 0;
  uint32_t job = 0;
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  uint32_t block = 0;  // position in CutIntoBlocks
  uint64_t epoch = 0;
  uint64_t step = 0;  // step of a contribution; version of a view
  uint64_t session_key = 0;
  // kPush: how many samples the gradient is the mean of. kPublish: the loss scale of the
  // step that begins with this version, as the bits of a float.
  uint32_t samples = 0;
  uint16_t code = 0;   // RefuseCode
  uint16_t flags = 0;  // kFlagUnchanged, kFlagParting, kFlagAnew, ...
  // Position in the job's list of shards. kPublish: the job's learning rate at the step
  // that begins with this version, as the bits of a float. kPush: see kFlagRate.
  uint32_t shard = 0;
  uint32_t header_crc = 0;  // CRC-32C of the 60 bytes before it
};
static_assert(sizeof(MessageHeader) == kMessageHeaderBytes);

// The digest of a kPull with kFlagHeld (comm/codec/view_digest.h makes it).
inline void SetDigest(MessageHeader& header, uint64_t digest) {
  header.samples = static_cast<uint32_t>(digest);
  header.shard = static_cast<uint32_t>(digest >> 32);
}
inline uint64_t DigestOf(const MessageHeader& header) {
  return header.samples | uint64_t{header.shard} << 32;
}

// How a message travels: without a payload as kControl, averages, state and records as
// kBackground, others as `data` says. Messages of one block stay in order, but for averages
// and state, which nothing else waits for.
Traffic TrafficOf(const MessageHeader& header, size_t payload_bytes,
                  TrafficClass data = TrafficClass::kOther);

// Fills header_crc and returns the bytes to send, valid as long as `header`.
ByteView SealHeader(MessageHeader& header);

// InvalidArgument unless `bytes` is exactly one intact header of a known kind and
// version.
absl::StatusOr<MessageHeader> ParseHeader(ByteView bytes);

}  // namespace syncline
