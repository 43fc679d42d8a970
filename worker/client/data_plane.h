// The data plane of a session: the thread that runs the transport and the exchange, and
// the ones that encode and decode for it.
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
  // What this worker shares with the server of each shard; needed where it is not on this
  // host.
  std::vector<SecretKey> shard_keys = {};
  ExchangeOptions exchange;
  // That encode and decode beside the loop thread, and their tracks; 0: it does that itself,
  // a block between two rounds of the transport.
  uint32_t codec_threads = 0;
  std::vector<TraceTrack*> codec_tracks = {};
  // Whose tensors are gradients that servers of this host read where they lie, too.
  std::shared_ptr<SharedArena> arena = SharedArena::Create({});
  Logger log;
  // Called on the loop thread; null: UCX.
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

  // Small gradients leave together: once they are kTogetherBytes, with Flush, or after
  // 10 ms. From one thread at a time, as Skip and Flush.
  void Push(uint32_t tensor, const ConstMemoryView& gradient, uint32_t samples);
  // What was pushed and skipped leaves now.
  void Flush();
  // See Exchange::SetRateFactor.
  void SetRateFactor(uint32_t tensor, float factor);
  // See Exchange::Skip.
  void Skip(uint32_t tensor);
  // See Exchange::PullAverage; answered by on_averaged.
  void PullAverage(uint32_t tensor);
  void PullState(uint32_t tensor, uint32_t array);
  // See Exchange::Settle; answered by on_ready.
  void Settle(uint32_t tensor);
  // See Exchange::Part; answered by on_parted.
  void Part();
  // What the worker keeps of each tensor, in order, for as long as `use` runs on the loop
  // thread; its answer. DeadlineExceeded after `limit`.
  using Memories = std::span<GradientMemory* const>;
  absl::Status WithMemories(const std::function<absl::Status(Memories)>& use,
                            absl::Duration limit);
  void EpochChanged(uint64_t epoch, SeedRole role);
  // See Exchange::SetStaleness.
  void SetStaleness(uint64_t staleness);
  // Other servers have taken over these shards. Before EpochChanged of the epoch in which
  // they are there.
  void Moved(std::vector<ShardPlace> places);
  // Ends the exchange and closes all connections. `closed` is called on the loop thread,
  // once nothing reads gradients or touches weights any more; a transport that does not let
  // go of them within Timeouts::shutdown_grace is reported and no longer waited for. False
  // when the loop is stopping: then it is not called, and Stop's end says the same.
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
  // Runs what `act` gives out, once the exchange knows how much it may send.
  template <typename Act>
  void Do(const Act& act);
  void Run(ExchangeOutputs outputs);
  void Send(ExchangeSend send);
  void Encode(std::shared_ptr<EncodeWork> work);
  void EncodeHere();
  void Decode(std::shared_ptr<DecodeWork> work);
  // To the codec threads; the exchange is told what it came to.
  template <typename Work>
  void Submit(std::shared_ptr<Work> work);
  // Until nothing is encoded or decoded any more.
  void AwaitCodecs();
  void Fail(const absl::Status& status);
  void PublishProgress();

  // Memory of the caller that was being sent is free.
  void Returned(uint32_t block);
  // There may be room for more.
  void Sent();
  void ReportIfClosed();
  void NoteUnfinished();
  void HideUnfinished();

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override;
  void OnMessage(ByteView header, Buffer payload) override;
  void OnBorrowed(ByteView header, Landed payload) override;

  // What comes on the connection to one shard.
  class FromShard;
  // The shard on whose connection a message came; none: it came to the transport's
  // receiver.
  using From = std::optional<uint32_t>;
  absl::StatusOr<Buffer> Land(const From& from, ByteView header, size_t payload_bytes);
  void Take(const From& from, ByteView header, Slice payload);
  // False for what no shard would send, and for what somebody else than its shard sent: a
  // server speaks for the blocks that it holds, and for no others.
  bool IsOfItsShard(const From& from, const MessageHeader& header);

  const DataPlaneOptions options_;
  const DataPlaneEvents events_;
  const SteadyClock clock_;
  std::unique_ptr<TransportLoop> loop_;

  size_t waiting_bytes_ = 0;  // of gradients that the loop was not woken for

  // Of the loop thread.
  BufferPool pool_;
  // Servers of this host read contributions in place.
  const std::shared_ptr<SharedArena> arena_;
  std::unique_ptr<Exchange> exchange_;
  std::deque<std::shared_ptr<EncodeWork>> to_encode_;  // on this thread
  bool encodes_here_ = false;
  bool all_local_ = false;  // all servers are on this host
  CodecWorkspace workspace_ = {.is_of_exchange = true};
  // Null: everything is encoded and decoded on this thread.
  std::unique_ptr<CodecThreads> codec_threads_;
  std::vector<std::unique_ptr<FromShard>> from_shards_;  // in order; outlive links_
  std::unique_ptr<ShardLinks> links_;
  bool failed_ = false;
  uint64_t foreign_messages_ = 0;
  std::set<From> named_foreign_;            // the log has a line of these
  size_t borrowed_sends_ = 0;               // under way, from the caller's memory
  std::vector<ByteView> unfinished_;        // gradients, when it was closed
  std::function<void()> closed_ = nullptr;  // to be told
  absl::Duration give_up_at_ = absl::InfiniteDuration();

  // Written by the loop thread, read by anyone.
  std::atomic<float> loss_scale_ = 1;
  mutable absl::Mutex stats_mutex_;
  ExchangeStats stats_ ABSL_GUARDED_BY(stats_mutex_);
  std::string codec_choice_ ABSL_GUARDED_BY(stats_mutex_);
};

}  // namespace syncline
