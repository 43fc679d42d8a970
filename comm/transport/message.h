// The data-plane message header: 64 bytes, little-endian, before every payload
// (docs/wire_format.md).
//
// (job, rank, incarnation, step, block) names a contribution. `epoch` is the membership
// under which the message was sent. The coordinator gives `session_key` to the member and
// to the servers only, so no other process can send messages for this rank. `header_crc`
// detects data that is not a Syncline message at all.
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
  // Worker -> shard: the payload is the worker's transport address. `step` tells this
  // connection from others.
  kHello = 1,
  // Worker -> shard: initial values of a block (tile frames, FP32).
  kSeed = 2,
  // Worker -> shard: a contribution (tile frames).
  kPush = 3,
  // Worker -> shard: requests the block once its version is at least `step`.
  kPull = 4,
  // Shard -> worker: the seed or contribution for `step` is held and need not be sent
  // again.
  kAck = 5,
  // Shard -> worker: `code` says why; `epoch` is the shard's.
  kRefuse = 6,
  // Shard -> worker: the block at version `step` (tile frames).
  kPublish = 7,
  // Worker -> shard: requests the block's averaged weights.
  kPullAverage = 8,
  // Shard -> worker: answers kPullAverage, at version `step` (tile frames, FP32).
  kAverage = 9,
  // Shard -> worker: answers the kHello with this `step`.
  kWelcome = 10,
  // Shard -> worker: the answer to this message follows or is under way. The message's
  // payload need not be sent again.
  kNoted = 11,
  // Worker -> shard: array `samples` of the optimizer state with which a block starts,
  // after `shard` updates (tile frames, FP32).
  kSeedState = 12,
  // Worker -> shard: requests array `samples` of the optimizer state.
  kPullState = 13,
  // Shard -> worker: answers kPullState, at version `step`, after `shard` updates.
  kState = 14,
  // Shard -> its backup: the payload is the shard's transport address.
  kBackupHello = 15,
  // Shard -> its backup: piece `block` of `samples` pieces of record `step`. `epoch` is
  // the CRC-32C of the piece.
  kRecord = 16,
  // Backup -> shard: all records up to `step` have arrived.
  kRecordAck = 17,
};

// Why a shard refuses a message. Part of the wire format.
enum class RefuseCode : uint16_t {
  kNone = 0,
  kStaleEpoch = 1,       // sender is behind: adopt the refusal's epoch and send again
  kFutureEpoch = 2,      // shard is behind: send again a little later
  kNotMember = 3,        // this rank and incarnation was dropped or never joined
  kUnknownBlock = 4,     // no such tensor or block on this shard
  kMalformed = 5,        // frames do not parse or do not fit the tensor
  kWrongStep = 6,        // neither the current step nor a repetition of a counted one
  kUnauthenticated = 7,  // session key does not belong to that rank
  kNotSeeded = 8,        // block has no values yet
  kNoAverage = 9,        // the job keeps no averaged weights, or no such state
  kTooLate = 10,         // the step was closed without this contribution
};

// kPublish without a payload: the weights equal those of the previous version.
inline constexpr uint16_t kFlagUnchanged = 1;
// kPush: the error feedback of a worker that leaves, in FP32. It counts even if the
// sender is not a member any more. It is weighted by `samples`, but these are not added
// to the number of samples that the mean is taken over.
inline constexpr uint16_t kFlagParting = 2;
// kPull: the view that arrived on this connection could not be used and must be sent
// again. Without the flag a shard sends each version of a block's view once over a
// connection, however often it is requested. kPullAverage and kPullState: this request
// replaces one that still waits.
inline constexpr uint16_t kFlagResend = 4;
// kPush: the learning rate of this step is multiplied by the factor in `shard`, the bits
// of a float from 0 to kMaxRateFactor. The contributor that joined the job first decides.
// Without the flag: 1.
inline constexpr uint16_t kFlagRate = 8;
inline constexpr float kMaxRateFactor = 1e6f;
// kPull: the worker has initial values, whose digest is in `samples` and `shard`
// (SetDigest). kPublish without a payload: the view is what the servers publish for these
// values.
inline constexpr uint16_t kFlagHeld = 16;
// Jobs with a quorum. kPublish: the receiver's contribution to the step before this
// version was counted. kAck: the contribution to the acknowledged step was counted.
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
  // kPush: number of samples that the gradient is the mean of. kPublish: the loss scale
  // of the step that begins with this version, as the bits of a float.
  uint32_t samples = 0;
  uint16_t code = 0;   // RefuseCode
  uint16_t flags = 0;  // kFlagUnchanged, kFlagParting, kFlagResend, ...
  // Position in the job's list of shards. kPublish: the learning rate of the step that
  // begins with this version, as the bits of a float. kPush: see kFlagRate.
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

// Returns how a message travels: kControl if it has no payload, kBackground for averages,
// state and records, and otherwise `data`. Messages of the same block stay in order,
// except averages and state, which no other message depends on.
Traffic TrafficOf(const MessageHeader& header, size_t payload_bytes,
                  TrafficClass data = TrafficClass::kOther);

// Fills in header_crc and returns the bytes to send. They are valid as long as `header`.
ByteView SealHeader(MessageHeader& header);

// Fails with InvalidArgument unless `bytes` is exactly one intact header of a known kind
// and version.
absl::StatusOr<MessageHeader> ParseHeader(ByteView bytes);

}  // namespace syncline
