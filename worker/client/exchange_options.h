// The options of an exchange. Only the epoch and the staleness change later
// (Exchange::EpochChanged, SetStaleness).
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
  uint64_t seed = 0;  // JobSeed of the job's name, for stochastic rounding
  uint32_t rank = 0;
  uint32_t incarnation = 0;
  uint64_t session_key = 0;
  uint64_t epoch = 0;
  uint64_t first_step = 0;
  SeedRole role = SeedRole::kReceiver;
  SyncMode mode = {};
  uint32_t shards = 0;
  // The shard of each block. The position is the block id of CutIntoBlocks over the
  // tensors.
  std::vector<uint32_t> shard_of_block = {};
  // By tensor: received once, never pushed. Empty: no tensor is frozen.
  std::vector<bool> frozen = {};
  std::vector<TensorTransfers> transfers = {};  // by tensor
  const Codec* seed_codec = nullptr;            // FP32
  // Optimizer state to seed, by tensor. It is read while seeding. Empty: none.
  std::vector<SeedState> seed_states = {};
  Checksum checksum = Checksum::kHeaderOnly;
  // Allocates memory for encoded contributions that servers on this host can read in
  // place, aligned to at least kBufferAlignment. If it is null or returns null, dense
  // FP32 is sent from the gradient, and everything else from memory of the pool.
  std::function<std::shared_ptr<std::byte>(size_t)> push_memory = nullptr;
  // Returns the owner of a gradient's memory if servers can read it in place, with zeros
  // after it up to a multiple of kTileAlignment. Returns null for other memory. In
  // lockstep modes, blocks whose encoding is the gradient itself are then lent instead of
  // encoded.
  std::function<std::shared_ptr<const void>(ByteView)> keeper_of = nullptr;
  // Maximum number of ExchangeEncode under way; at least 1.
  uint32_t encodings_at_once = 1;
  // Whether error feedback is converted when the learning rate changes. This is correct
  // if updates are proportional to gradients.
  bool follow_learning_rate = false;
  ReceiverPlace receiver = ReceiverPlace::kNetwork;  // where all servers are
  // Measures the cost of encoding and decoding, nothing else. Null: it is not measured.
  const Clock* clock = nullptr;
  // Receives the phases of the exchange. Null: they are not measured. Must outlive the
  // exchange.
  PhaseMeter* phases = nullptr;
  // Receives spans of blocks while a trace of the job is open. Null: none. Used on the
  // exchange's thread only. Must outlive the exchange.
  TraceTrack* trace = nullptr;
};

}  // namespace syncline
