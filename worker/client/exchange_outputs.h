// The outputs of an exchange, which its caller carries out or passes on, and its
// statistics.
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

// A message to send to a shard. If it borrows the caller's gradient, call SendDone(block)
// once the send is done. The tensor is not ready before that.
struct ExchangeSend {
  uint32_t shard = 0;
  MessageHeader header = {};
  Payload payload = {};
  bool borrows_gradient = false;
  TrafficClass traffic_class = TrafficClass::kOther;  // of messages with a payload
};
// A request to encode. Run it on the exchange's own thread or on another one
// (EncodeWork::IsShort), then call Encoded on the exchange's thread. It reads the
// caller's gradient and error feedback, so it must end before the exchange is destroyed.
struct ExchangeEncode {
  std::shared_ptr<EncodeWork> work;
};
// A request to decode. Run it the same way, then call Decoded. It writes the weights of
// one block, which nothing else may use meanwhile. It must end before the program gets
// its memory back, and before the exchange is destroyed.
struct ExchangeDecode {
  std::shared_ptr<DecodeWork> work;
};
// All blocks of the tensor hold the version that it waited for, and the caller may use
// its memory again.
struct ExchangeReady {
  uint32_t tensor = 0;
  // With a quorum: the step that the tensor contributes to next. It skips steps that the
  // other workers made without this one. Otherwise empty.
  std::optional<uint64_t> step = std::nullopt;
};
// With a quorum: the step does not include this worker's contribution.
struct ExchangeLate {
  uint64_t step = 0;
};
// The exchange is over.
struct ExchangeFailed {
  absl::Status status;
};
// The answer to PullAverage or PullState: averaged weights of a tensor, or an array of
// its optimizer state.
struct ExchangeAveraged {
  absl::Status status = {};  // FailedPrecondition: the job keeps no such values
  std::vector<float> weights = {};
  uint64_t updates = 0;  // number of updates that the state is the result of
};
// The servers hold all error feedback of this worker.
struct ExchangeParted {};
using ExchangeOutput =
    std::variant<ExchangeSend, ExchangeEncode, ExchangeDecode, ExchangeReady,
                 ExchangeFailed, ExchangeAveraged, ExchangeParted, ExchangeLate>;
using ExchangeOutputs = std::vector<ExchangeOutput>;

struct ExchangeStats {
  uint64_t bytes_pushed = 0;
  uint64_t bytes_pulled = 0;
  uint64_t resent_blocks = 0;
  uint64_t late_steps = 0;  // steps that a quorum made without this worker
  // Bytes that were acknowledged or written to weights, without repetitions.
  uint64_t progress_bytes = 0;
  // Gradient elements that were pushed, and their encoded bytes, without repetitions.
  uint64_t pushed_values = 0;
  uint64_t pushed_value_bytes = 0;
  // Number of blocks whose weights differed from the servers' and were replaced by a
  // whole view. Above 0 only if memory was damaged or the program wrote to the weights.
  uint64_t diverged_blocks = 0;
  // Dropped messages that named a shard which did not send them. The data plane counts
  // them.
  uint64_t foreign_messages = 0;
  // Bytes on their way to the shard with most, over its window. Set by the data plane.
  double window_fill = 0;
  CodecCost encoding = {};  // of pushes
  CodecCost decoding = {};  // of views
  // Recent norm of error feedback, divided by that of gradients; 0: unknown.
  double residual_ratio = 0;
  // How fast the links to other hosts are; 0: unknown. The data plane measures them.
  double sent_bytes_per_second = 0;
  double received_bytes_per_second = 0;
};

}  // namespace syncline
