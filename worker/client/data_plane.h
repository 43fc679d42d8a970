// The data plane of a session: the loop thread that runs the transport and the exchange,
// and the threads that encode and decode for it.
//
// Thread safety: every public method may be called from any thread. Events are called on
// the loop thread and must not block.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/buffer.h"
#include "comm/base/env.h"
#include "comm/base/log.h"
#include "comm/base/secret_key.h"
#include "comm/base/timeouts.h"
#include "comm/transport/loop.h"
#include "comm/transport/message.h"
#include "comm/transport/network/network.h"
#include "comm/transport/shared_arena.h"
#include "comm/transport/transport.h"
#include "worker/client/codec_threads.h"
#include "worker/client/decode_work.h"
#include "worker/client/encode_work.h"
#include "worker/client/exchange.h"
#include "worker/client/shard_links.h"

namespace syncline {

struct DataPlaneOptions {
  Timeouts timeouts = Timeouts::Derive(kDefaultFailureTimeout);
  std::vector<std::string> shard_addresses = {};
  // One key for each shard, shared with its server; required for servers on other hosts.
  std::vector<SecretKey> shard_keys = {};
  ExchangeOptions exchange;
  // Number of threads that encode and decode, and their tracks in traces. 0: the loop
  // thread does it, one block between two rounds of the transport.
  uint32_t codec_threads = 0;
  std::vector<TraceTrack*> codec_tracks = {};
  // Servers on this host read gradients in this arena in place.
  std::shared_ptr<SharedArena> arena = SharedArena::Create({});
  Logger log;
  // Creates the transport, on the loop thread. Null: NetworkTransport.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(Receiver&)> make_transport =
      nullptr;
};

struct DataPlaneEvents {
  std::function<void(const ExchangeReady&)> on_ready;
  std::function<void(const absl::Status&)> on_failed;
  std::function<void(ExchangeAveraged)> on_averaged = [](const ExchangeAveraged&) {};
  std::function<void()> on_parted = [] {};
};

class DataPlane : private Receiver {
 public:
  // Connects to all shards and begins to seed or receive `weights`.
  static absl::StatusOr<std::unique_ptr<DataPlane>> Start(DataPlaneOptions options,
                                                          std::vector<MemoryView> weights,
                                                          DataPlaneEvents events);
  ~DataPlane() override;

  // Small gradients are collected and sent together: once they have kTogetherBytes, by
  // Flush, or after 10 ms. Push, Skip and Flush: one thread at a time.
  void Push(uint32_t tensor, const ConstMemoryView& gradient, uint32_t samples);
  // Sends all pushes and skips so far.
  void Flush();
  // See Exchange::SetRateFactor.
  void SetRateFactor(uint32_t tensor, float factor);
  // See Exchange::Skip.
  void Skip(uint32_t tensor);
  // See Exchange::Release.
  void Release(uint32_t tensor);
  // See Exchange::PullAverage; answered by on_averaged.
  void PullAverage(uint32_t tensor);
  void PullState(uint32_t tensor, uint32_t array);
  // See Exchange::Settle; answered by on_ready.
  void Settle(uint32_t tensor);
  // See Exchange::Part; answered by on_parted.
  void Part();
  // Runs `use` on the loop thread with the error feedback of each tensor, in order, and
  // returns its result. DeadlineExceeded after `limit`.
  using Memories = std::span<GradientMemory* const>;
  absl::Status WithMemories(const std::function<absl::Status(Memories)>& use,
                            absl::Duration limit);
  void EpochChanged(uint64_t epoch, SeedRole role);
  // See Exchange::SetStaleness.
  void SetStaleness(uint64_t staleness);
  // Reports that other servers have taken over these shards. Must come before
  // EpochChanged of the epoch from which on they hold them.
  void Moved(std::vector<ShardPlace> places);
  // Ends the exchange and closes all connections. Calls `closed` on the loop thread once
  // nothing uses gradients or weights any more. If the transport still uses them after
  // Timeouts::shutdown_grace, that is logged, and `closed` is called. Returns false if
  // the loop is stopping: `closed` is not called then, and the memory is free once Stop
  // returns.
  bool Close(std::function<void()> closed);
  void Stop();

  ExchangeStats stats() const;
  // See Exchange::codec_choice.
  std::string codec_choice() const;
  // See Exchange::loss_scale.
  float loss_scale() const { return loss_scale_.load(std::memory_order_relaxed); }

 private:
  DataPlane(DataPlaneOptions options, DataPlaneEvents events);
  void Open(Transport& transport, const std::vector<MemoryView>& weights);
  absl::StatusOr<std::unique_ptr<Transport>> MakeTransport();
  ShardLinksOptions LinksOptions() const;
  void Tick();
  // Tells the exchange how much it may send, and runs the outputs of `act`.
  template <typename Act>
  void Do(const Act& act);
  void Run(ExchangeOutputs outputs);
  void Send(ExchangeSend send);
  void Encode(std::shared_ptr<EncodeWork> work);
  void EncodeHere();
  void Decode(std::shared_ptr<DecodeWork> work);
  // Gives the work to the codec threads, and its result to the exchange.
  template <typename Work>
  void Submit(std::shared_ptr<Work> work);
  // Waits until nothing is being encoded or decoded.
  void AwaitCodecs();
  void Fail(const absl::Status& status);
  void PublishProgress();

  // A send no longer uses the caller's memory.
  void Returned(uint32_t block);
  // A send is done, so there may be room for more.
  void Sent();
  void ReportIfClosed();
  void NoteUnfinished();
  void HideUnfinished();

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override;
  void OnMessage(ByteView header, Buffer payload) override;
  void OnBorrowed(ByteView header, Landed payload) override;

  // Receives what arrives on the connection to one shard.
  class FromShard;
  // The shard on whose connection a message arrived. Empty: it arrived at the transport's
  // receiver.
  using From = std::optional<uint32_t>;
  absl::StatusOr<Buffer> Land(const From& from, ByteView header, size_t payload_bytes);
  void Take(const From& from, ByteView header, Slice payload);
  // Returns whether the message may have been sent by the server of its block's shard. A
  // server may send messages for its own blocks only.
  bool IsOfItsShard(const From& from, const MessageHeader& header);

  const DataPlaneOptions options_;
  const DataPlaneEvents events_;
  const SteadyClock clock_;
  std::unique_ptr<TransportLoop> loop_;

  size_t waiting_bytes_ = 0;  // bytes of gradients that the loop was not yet woken for

  // The loop thread's.
  BufferPool pool_;
  // Servers on this host read contributions in this arena in place.
  const std::shared_ptr<SharedArena> arena_;
  std::unique_ptr<Exchange> exchange_;
  std::deque<std::shared_ptr<EncodeWork>> to_encode_;  // on this thread
  bool encodes_here_ = false;
  bool all_local_ = false;  // all servers are on this host
  CodecWorkspace workspace_ = {.is_of_exchange = true};
  // Null: the loop thread encodes and decodes.
  std::unique_ptr<CodecThreads> codec_threads_;
  std::vector<std::unique_ptr<FromShard>> from_shards_;  // in order; outlive links_
  std::unique_ptr<ShardLinks> links_;
  bool failed_ = false;
  uint64_t foreign_messages_ = 0;
  std::set<From> named_foreign_;            // senders that were logged
  size_t borrowed_sends_ = 0;               // sends under way from the caller's memory
  std::vector<ByteView> unfinished_;        // gradients in use at Close
  std::function<void()> closed_ = nullptr;  // Close's argument, not yet called
  absl::Duration give_up_at_ = absl::InfiniteDuration();

  // Written by the loop thread, read by anyone.
  std::atomic<float> loss_scale_ = 1;
  mutable absl::Mutex stats_mutex_;
  ExchangeStats stats_ ABSL_GUARDED_BY(stats_mutex_);
  std::string codec_choice_ ABSL_GUARDED_BY(stats_mutex_);
};

}  // namespace syncline
