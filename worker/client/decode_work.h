// A request to decode a view into the weights of one block: the exchange creates it, and
// any thread runs it. It touches only its view and these weights, so requests of
// different blocks may run at once, on any threads and in any order, with the same
// weights as result.
//
//   CodecWorkspace workspace;                        // one for each thread
//   work->Run(workspace);                            // ExchangeDecode::work
//   outputs = exchange.Decoded(*work, clock.Now());  // on the exchange's own thread
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "comm/base/buffer.h"
#include "comm/base/env.h"
#include "comm/transport/message.h"
#include "worker/client/codec_cost.h"
#include "worker/client/codec_workspace.h"
#include "worker/client/view_landing.h"

namespace syncline {

// A view as it arrived from a shard.
struct PublishedView {
  MessageHeader header = {};
  Slice payload = {};
};

class DecodeWork {
 public:
  struct Options {
    uint32_t job = 0;
    uint32_t rank = 0;
    uint64_t step = 0;             // for traces: of the contribution that it follows
    const Clock* clock = nullptr;  // null: the cost is not measured
  };
  // `landing` must outlive it, and so must a payload that the view does not own.
  DecodeWork(const Options& options, const ViewLanding& landing, PublishedView view,
             const ViewLanding::Place& place);

  // Decodes, and releases the payload. Call it once.
  void Run(CodecWorkspace& workspace);

  // Whether handing it to another thread would cost more than running it: it is small, or
  // no more than a copy.
  bool IsShort() const { return is_short_; }

  const MessageHeader& header() const { return view_.header; }
  size_t payload_bytes() const { return payload_bytes_; }

  // ---- Results ----
  // An error of the GPU whose memory was written. The other results are valid only if
  // this is OK.
  const absl::Status& status() const { return status_; }
  ViewLanding::Result result() const { return result_; }
  const CodecCost& cost() const { return cost_; }

 private:
  const Options options_;
  const ViewLanding& landing_;
  PublishedView view_;
  const size_t payload_bytes_;
  const ViewLanding::Place place_;
  const bool is_short_;
  absl::Status status_;
  ViewLanding::Result result_ = ViewLanding::Result::kIgnored;
  CodecCost cost_;
};

}  // namespace syncline
