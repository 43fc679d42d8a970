// What an exchange gives out, for somebody to do or to know, and its figures.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "comm/base/buffer.h"
#include "comm/transport/message.h"
#include "comm/transport/traffic.h"
#include "worker/client/codec_cost.h"
#include "worker/client/decode_work.h"
#include "worker/client/encode_work.h"

namespace syncline {

// To be sent to a shard. When it borrows the caller's gradient, SendDone(block) must be
// told once the send is done: until then the tensor is not ready.
struct ExchangeSend {
  uint32_t shard = 0;
  MessageHeader header = {};
  Payload payload = {};
  bool borrows_gradient = false;
  TrafficClass traffic_class = TrafficClass::kOther;  // of what has a payload
};
// To be run, and handed back with Encoded, on the exchange's own thread or on another one
// (EncodeWork::IsShort). It reads the caller's gradient and what the exchange keeps: before
// the exchange goes, it is over.
struct ExchangeEncode {
  std::shared_ptr<EncodeWork> work;
};
// Likewise, and handed back with Decoded. It writes to the weights of one block, which
// nobody else reads or writes meanwhile: before the program gets its memory back, or the
// exchange goes, it is over.
struct ExchangeDecode {
  std::shared_ptr<DecodeWork> work;
};
// All blocks of the tensor hold the version that was waited for, and its memory is the
// caller's again.
struct ExchangeReady {
  uint32_t tensor = 0;
  // With a quorum: that it contributes to next; further than the next one where the others
  // went on without this worker.
  std::optional<uint64_t> step = std::nullopt;
};
// With a quorum: what this worker gave to that step, or will give, is not part of it.
struct ExchangeLate {
  uint64_t step = 0;
};
// The exchange is over.
struct ExchangeFailed {
  absl::Status status;
};
// The averaged weights of a tensor, or an array of its optimizer's state, as asked for.
struct ExchangeAveraged {
  absl::Status status = {};  // FailedPrecondition when the job keeps none
  std::vector<float> weights = {};
  uint64_t updates = 0;  // that made the state
};
// What this worker had kept is held by the servers.
struct ExchangeParted {};
using ExchangeOutput =
    std::variant<ExchangeSend, ExchangeEncode, ExchangeDecode, ExchangeReady,
                 ExchangeFailed, ExchangeAveraged, ExchangeParted, ExchangeLate>;
using ExchangeOutputs = std::vector<ExchangeOutput>;

struct ExchangeStats {
  uint64_t bytes_pushed = 0;
  uint64_t bytes_pulled = 0;
  uint64_t resent_blocks = 0;
  uint64_t late_steps = 0;  // that a quorum made without this worker, while it computed
  // Acknowledged, or landed: repetitions are no progress.
  uint64_t progress_bytes = 0;
  // Of gradients, each counted once.
  uint64_t pushed_values = 0;
  uint64_t pushed_value_bytes = 0;
  // Blocks whose view was not the servers' and was taken anew as a whole; 0 unless memory
  // was damaged or somebody wrote to the weights.
  uint64_t diverged_blocks = 0;
  // In the name of a shard, but not by it; dropped. Counted by the data plane.
  uint64_t foreign_messages = 0;
  CodecCost encoding = {};  // of pushes
  CodecCost decoding = {};  // of views
  // What encodings have lost and still have to send, over a gradient, as norms.
  double residual_ratio = 0;
};

}  // namespace syncline
