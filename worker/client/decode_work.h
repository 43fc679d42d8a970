// A view that is to land in the weights of one block: the exchange asks for it, and some
// thread does it. It touches nothing but its view and these weights, so works of different
// blocks may run at once, on any threads and in any order: the weights are the same.
//
//   CodecWorkspace workspace;                        // of this thread
//   work->Run(workspace);                            // ExchangeDecode::work
//   outputs = exchange.Decoded(*work, clock.Now());  // on the exchange's own thread
//
// Thread safety: one thread runs it, and hands it back.
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

// As it came from a shard.
struct PublishedView {
  MessageHeader header = {};
  Slice payload = {};
};

class DecodeWork {
 public:
  struct Options {
    uint32_t job = 0;
    uint32_t rank = 0;
    const Clock* clock = nullptr;  // null: the cost is not measured
  };
  // `landing` outlives it; so does the payload, where the view does not own it.
  DecodeWork(const Options& options, const ViewLanding& landing, PublishedView view,
             const ViewLanding::Place& place);

  // Once. Lets go of the payload.
  void Run(CodecWorkspace& workspace);

  // Whether another thread would cost more than it takes from this one: little, or no more
  // than a copy.
  bool IsShort() const { return is_short_; }

  const MessageHeader& header() const { return view_.header; }
  size_t payload_bytes() const { return payload_bytes_; }

  // ---- What it came to ----
  // Of the GPU whose memory was written; the rest has a meaning only where this is OK.
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
