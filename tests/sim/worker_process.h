// A worker of the simulation. It has the real exchange and real links to shards over an
// in-process transport, and a simulated control stream. Its gradients depend on the
// weights that it holds, so that a wrong weight anywhere shows everywhere.
//
// Thread safety: none.
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

// How a worker stands still instead of computing step `from_step` or a later one.
struct WorkerFault {
  enum Kind {
    kNone,
    kClaimsToWait,   // its heartbeats say that it waits, and it pushes nothing
    kEntersBarrier,  // it enters a barrier, and the others do not
    kCrashes
  } kind = kNone;
  uint64_t from_step = 0;
};

// Which tensors a worker has no gradient of.
enum class Skipping {
  kNothing,
  kAtRandom,     // each worker independently
  kAlternating,  // all workers together, every other step
};

// The factors by which workers multiply learning rates, different at every step.
enum class Rating {
  kNothing,
  kAlike,   // all workers use the same factor, as they should
  kUnlike,  // each worker uses another factor
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
    std::optional<uint64_t> leave_at = std::nullopt;  // it leaves before this step
    WorkerFault fault = {};
    Skipping skipping = Skipping::kNothing;
    Rating rating = Rating::kNothing;
    double slowness = 1;         // time of its computations, relative to the others
    uint64_t barrier_every = 0;  // number of steps between barriers; 0: none
    bool pulls = false;          // it pulls averages and optimizer state
    // Planted faults: it runs this many steps further ahead than the mode allows; it
    // ignores that the staleness was reduced; it pushes twice over the same connection.
    uint64_t runs_ahead = 0;
    bool hears_no_less = false;
    bool pushes_twice = false;
    uint64_t seed = 0;
    std::string host = {};  // whose cable it uses; empty: none
    // The coordinator ended this process. It may be restarted.
    std::function<void(uint32_t rank, const absl::Status&)> on_end;
  };

  WorkerProcess(Parts parts, uint32_t rank);
  ~WorkerProcess() override;

  // Kills the process, like kill -9. Messages under way still arrive.
  void Kill();
  // SIGSTOP and SIGCONT.
  void Freeze();
  void Thaw();

  bool IsDone() const { return exchange_ != nullptr && !failed_ && done_; }
  // Fetches the newest weights. IsDone again once they have arrived.
  void SettleAgain() {
    if (!IsDone()) return;
    done_ = false;
    Settle();
  }
  bool IsLeaving() const { return leaving_; }
  std::string address() const { return transport_->address(); }
  std::optional<uint32_t> incarnation() const { return incarnation_; }
  // Returns the step under way; 0 before it has joined.
  uint64_t step() const { return exchange_ == nullptr ? 0 : exchange_->step(); }
  // Returns the version of the block that it holds; 0 before it has joined.
  uint64_t version_of(uint32_t block) const {
    return exchange_ == nullptr ? 0 : exchange_->version_of(block);
  }
  const std::vector<std::vector<float>>& weights() const { return weights_; }
  std::string Describe() const;

 private:
  void Attach();
  void OnLost();
  void OnControl(const CoordinatorBody& body);
  // Handles the staleness that the coordinator sends with an epoch.
  void TakeStaleness(std::optional<uint64_t> told);
  void Begin(const WorkerWelcome& welcome);
  void Beat();
  void Tick();
  void Compute();
  std::map<uint32_t, uint64_t> Versions(uint32_t tensor) const;
  // Fetches the newest weights before it is done or leaves.
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
  // Rounds the gradient to this worker's element type. Returns it in that type.
  ConstMemoryView InItsOwnType(uint32_t tensor);
  // Returns a copy of the gradient in memory that servers may read in place.
  ConstMemoryView Lent(uint32_t tensor, const ConstMemoryView& gradient);
  std::shared_ptr<const void> KeeperOf(ByteView gradient) const;
  void SpoilLent(uint32_t tensor);
  // Tells the exchange how much it may send, and carries out the outputs of `act`.
  template <typename Act>
  void Do(const Act& act);
  void Run(ExchangeOutputs outputs);
  void Send(ExchangeSend send);
  // Run after a random time and in any order, as on one of several threads.
  void Encode(const std::shared_ptr<EncodeWork>& work);
  void Decode(const std::shared_ptr<DecodeWork>& work);
  template <typename Answer>
  void RunSometime(std::function<void()> run, const Answer& answer);
  void NoteChoice(const ExchangeSend& send);
  // Calls `fn` now, or after Thaw if the worker is frozen.
  void WhenAwake(std::function<void()> fn);
  void After(absl::Duration delay, std::function<void()> fn);

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override;
  void OnMessage(ByteView header, Buffer payload) override;
  void OnBorrowed(ByteView header, Landed payload) override;
  void Take(const MessageHeader& header, const Slice& payload);

  Parts parts_;
  const uint32_t rank_;
  std::mt19937_64 random_;
  std::mt19937_64 codec_random_;  // for the times at which encodings and decodings run
  const std::vector<TensorTransfers> transfers_;
  BufferPool pool_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<ShardLinks> links_;
  ConnectionId connection_ = 0;
  std::optional<uint32_t> incarnation_;
  HeldMembership membership_;  // valid after the welcome
  bool parted_ = false;
  std::vector<std::vector<float>> weights_;
  std::vector<std::vector<float>> gradients_;
  std::vector<std::vector<uint16_t>> narrow_gradients_;  // if it computes in BF16
  // Gradients that servers read in place, by tensor. They are overwritten as soon as the
  // program may write to them again.
  std::vector<Buffer> lent_gradients_;
  std::vector<float> rate_factors_;  // by tensor
  std::unique_ptr<Exchange> exchange_;
  // Mode ssp: the staleness that servers were told, now and the largest since each
  // tensor's last push.
  uint64_t staleness_ = 0;
  std::vector<uint64_t> may_be_ahead_;  // by tensor
  bool has_run_ahead_ = false;
  uint64_t most_told_ = 0;
  CodecWorkspace workspace_;
  uint32_t ready_tensors_ = 0;
  bool computing_ = false;  // false: it waits for weights
  bool done_ = false;
  bool leaving_ = false;
  bool settling_ = false;
  std::optional<uint64_t> barrier_at_;  // step
  uint64_t barriers_entered_ = 0;
  std::optional<uint64_t> pulled_at_;               // step
  Reference::Pull pulled_;                          // under way
  uint32_t samples_ = 0;                            // of the last push
  std::set<std::pair<uint32_t, uint64_t>> pushed_;  // blocks and steps with a gradient
  std::set<std::pair<uint32_t, uint64_t>> parted_tensors_;  // tensors and steps
  bool failed_ = false;
  bool frozen_ = false;
  std::deque<std::function<void()>> when_thawed_;
  // False: the process was killed. Events outlive it, and check this first.
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
