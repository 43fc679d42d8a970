// What an exchange is told when it begins; nothing of it changes later but the epoch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/base/env.h"
#include "comm/base/sync_mode.h"
#include "comm/base/trace_recorder.h"
#include "comm/codec/codec.h"
#include "comm/codec/frame.h"
#include "comm/compression/transfer.h"
#include "worker/client/phase_meter.h"
#include "worker/client/seed_state.h"

namespace syncline {

// Whether this worker's values become the job's initial weights.
enum class SeedRole { kReceiver, kSeeder };

struct ExchangeOptions {
  uint32_t job = 0;
  uint64_t seed = 0;  // JobSeed of its name, for roundings
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  uint64_t session_key = 0;
  uint64_t epoch = 0;
  uint64_t first_step = 0;
  SeedRole role = SeedRole::kReceiver;
  SyncMode mode = {};
  uint32_t shards = 0;
  std::vector<uint32_t> shard_of_block =
      {};                         // position = block id of CutIntoBlocks over the tensors
  std::vector<bool> frozen = {};  // by tensor: received once, never pushed; empty: none
  std::vector<TensorTransfers> transfers = {};  // of all tensors, in order
  const Codec* seed_codec = nullptr;            // FP32
  // By tensor, read while seeding; empty: none.
  std::vector<SeedState> seed_states = {};
  Checksum checksum = Checksum::kHeaderOnly;
  // Where contributions are encoded, at least kBufferAlignment aligned: memory that
  // servers of this host can read in place. Null, or null returned: dense FP32 goes
  // straight from the gradient, all else through the pool.
  std::function<std::shared_ptr<std::byte>(size_t)> push_memory = nullptr;
  // What keeps the memory of a gradient, if servers can read it where it lies, up to a
  // multiple of kTileAlignment with zeros; null for other memory. Where nobody runs ahead,
  // and the gradient is its own encoding, its blocks are then lent, and not encoded.
  std::function<std::shared_ptr<const void>(ByteView)> keeper_of = nullptr;
  // How many ExchangeEncode may be under way; at least 1.
  uint32_t encodings_at_once = 1;
  // Whether what lossy encodings keep is converted when the learning rate changes: right
  // where updates are proportional to gradients.
  bool follow_learning_rate = false;
  ReceiverPlace receiver = ReceiverPlace::kNetwork;  // where all servers are
  // For what encoding and decoding cost, and for nothing else. Null: not measured.
  const Clock* clock = nullptr;
  // Is told what the exchange is at. Null: not measured. Outlives the exchange.
  PhaseMeter* phases = nullptr;
  // Takes spans of blocks while a trace of the job is open. Null: none. Outlives the
  // exchange; of its thread.
  TraceTrack* trace = nullptr;
};

}  // namespace syncline
