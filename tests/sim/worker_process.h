// A worker of the simulation: the real exchange and the real links to shards behind an
// in-process transport and a simulated control stream. It "computes" gradients that depend
// on the weights it holds, so that a wrong weight anywhere shows everywhere.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/base/buffer.h"
#include "comm/codec/codec.h"
#include "comm/transport/inproc/inproc.h"
#include "tests/sim/control_plane.h"
#include "tests/sim/reference.h"
#include "tests/sim/traffic.h"
#include "worker/client/exchange.h"
#include "worker/client/shard_links.h"

namespace syncline::sim {

// How a worker stands still, instead of computing that step or a later one.
struct WorkerFault {
  enum Kind {
    kNone,
    kClaimsToWait,   // in heartbeats, and pushes nothing
    kEntersBarrier,  // while others go on
    kCrashes
  } kind = kNone;
  uint64_t from_step = 0;
};

// Which tensors a worker has no gradient of.
enum class Skipping {
  kNothing,
  kAtRandom,     // each worker for itself
  kAlternating,  // all workers together, every other step
};

// What workers multiply learning rates with, another number at every step.
enum class Rating {
  kNothing,
  kAlike,   // as all workers should
  kUnlike,  // each worker something else
};

class WorkerProcess : private Receiver {
 public:
  struct Parts {
    EventQueue& events;
    InprocNetwork& network;
    ControlPlane& control;
    Reference& reference;
    Traffic& traffic;
    const CodecRegistry& codecs;
    const JobSpec& job;
    Timeouts timeouts;
    uint64_t target_step = 0;
    std::optional<uint64_t> leave_at = std::nullopt;  // a clean goodbye before that step
    WorkerFault fault = {};
    Skipping skipping = Skipping::kNothing;
    Rating rating = Rating::kNothing;
    double slowness = 1;         // how long it computes, over the others
    uint64_t barrier_every = 0;  // steps; 0: never
    bool pulls = false;          // averages and state of the optimizer
    uint64_t runs_ahead = 0;     // by so many steps more than the mode says
    bool hears_no_less = false;  // as far as it ever was allowed to
    bool pushes_twice = false;   // over the same connection
    uint64_t seed = 0;
    // The coordinator ended this life: it is over and may be restarted.
    std::function<void(uint32_t rank, const absl::Status&)> on_end;
  };

  WorkerProcess(Parts parts, uint32_t rank);
  ~WorkerProcess() override;

  // kill -9: what is in flight stays in flight, nothing else is said.
  void Kill();
  // SIGSTOP and SIGCONT.
  void Freeze();
  void Thaw();

  bool IsDone() const { return exchange_ != nullptr && !failed_ && done_; }
  // Takes the newest weights; done again once they are here.
  void SettleAgain() {
    if (!IsDone()) return;
    done_ = false;
    Settle();
  }
  bool IsLeaving() const { return leaving_; }
  std::string address() const { return transport_->address(); }
  std::optional<uint32_t> incarnation() const { return incarnation_; }
  // Under way; 0 before it has joined.
  uint64_t step() const { return exchange_ == nullptr ? 0 : exchange_->step(); }
  // That it was told; 0 before it has joined.
  uint64_t version_of(uint32_t block) const {
    return exchange_ == nullptr ? 0 : exchange_->version_of(block);
  }
  const std::vector<std::vector<float>>& weights() const { return weights_; }
  std::string Describe() const;

 private:
  void Attach();
  void OnLost();
  void OnControl(const CoordinatorBody& body);
  // The coordinator said, with its epoch, how far ahead this worker may be.
  void TakeStaleness(std::optional<uint64_t> told);
  void Begin(const WorkerWelcome& welcome);
  void Beat();
  void Tick();
  void Compute();
  std::map<uint32_t, uint64_t> Versions(uint32_t tensor) const;
  // The newest weights, once, before it is done or leaves.
  void Settle();
  void PushAll(uint64_t step);
  bool Skips(uint32_t tensor, uint64_t step) const;
  void Leave();
  bool WaitsInBarrier(uint64_t step);
  void OnReleased(const BarrierReleased& released);
  bool Pulls(uint64_t step);
  void OnAveraged(ExchangeAveraged averaged);
  static float Noise(uint64_t seed, uint64_t rank, uint64_t step, uint64_t element);
  void StandStill();
  float RateFactor(uint32_t tensor, uint64_t step) const;
  std::vector<float> Gradient(uint32_t tensor, uint64_t step);
  // What the worker computed, which is rounded to it.
  ConstMemoryView InItsOwnType(uint32_t tensor);
  // The same in memory that servers may read.
  ConstMemoryView Lent(uint32_t tensor, const ConstMemoryView& gradient);
  std::shared_ptr<const void> KeeperOf(ByteView gradient) const;
  void SpoilLent(uint32_t tensor);
  // Runs what `act` gives out, once the exchange knows how much it may send.
  template <typename Act>
  void Do(const Act& act);
  void Run(ExchangeOutputs outputs);
  void Send(ExchangeSend send);
  // As one of several threads does: some time, and in any order.
  void Encode(const std::shared_ptr<EncodeWork>& work);
  void Decode(const std::shared_ptr<DecodeWork>& work);
  template <typename Answer>
  void RunSometime(std::function<void()> run, const Answer& answer);
  void NoteChoice(const ExchangeSend& send);
  // Runs now, or once thawed.
  void WhenAwake(std::function<void()> fn);
  void After(absl::Duration delay, std::function<void()> fn);

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override;
  void OnMessage(ByteView header, Buffer payload) override;
  void OnBorrowed(ByteView header, Landed payload) override;
  void Take(const MessageHeader& header, const Slice& payload);

  Parts parts_;
  const uint32_t rank_;
  std::mt19937_64 random_;
  std::mt19937_64 codec_random_;  // when works are run
  const std::vector<TensorTransfers> transfers_;
  BufferPool pool_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<ShardLinks> links_;
  ConnectionId connection_ = 0;
  std::optional<uint32_t> incarnation_;
  HeldMembership membership_;  // once it is welcomed
  bool parted_ = false;
  std::vector<std::vector<float>> weights_;
  std::vector<std::vector<float>> gradients_;
  std::vector<std::vector<uint16_t>> narrow_gradients_;  // of those who compute in BF16
  // Of those whose servers read gradients where they lie, by tensor: as they were pushed, and
  // spoilt as soon as the program may write there again.
  std::vector<Buffer> lent_gradients_;
  std::vector<float> rate_factors_;  // of the gradients
  std::unique_ptr<Exchange> exchange_;
  // Of mode ssp, by what servers were told: now, and the largest since the last push of a
  // tensor.
  uint64_t staleness_ = 0;
  std::vector<uint64_t> may_be_ahead_;  // by tensor
  bool has_run_ahead_ = false;
  uint64_t most_told_ = 0;
  CodecWorkspace workspace_;
  uint32_t ready_tensors_ = 0;
  bool computing_ = false;  // otherwise it waits for weights
  bool done_ = false;
  bool leaving_ = false;
  bool settling_ = false;
  std::optional<uint64_t> barrier_at_;  // step
  uint64_t barriers_entered_ = 0;
  std::optional<uint64_t> pulled_at_;               // step
  Reference::Pull pulled_;                          // under way
  uint32_t samples_ = 0;                            // of the last push
  std::set<std::pair<uint32_t, uint64_t>> pushed_;  // blocks and steps with a gradient
  std::set<std::pair<uint32_t, uint64_t>> parted_tensors_;  // and steps
  bool failed_ = false;
  bool frozen_ = false;
  std::deque<std::function<void()>> when_thawed_;
  // Events outlive a killed process; they look here first.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

template <typename Act>
void WorkerProcess::Do(const Act& act) {
  if (failed_) return;
  links_->OfferRoom(*exchange_, parts_.events.now());
  Run(act(*exchange_));
  if (failed_) return;
  links_->OfferRoom(*exchange_, parts_.events.now());
  Run(exchange_->Pump(parts_.events.now()));
}

}  // namespace syncline::sim
