// The implementation of Session. session.cc has the functions that users call, and Leave.
// session_start.cc joins the job; session_push.cc handles gradients; session_wait.cc has
// the calls that wait for other processes; session_control.cc handles messages of the
// coordinator and sends heartbeats. session_trace.cc and session_residuals.cc record
// traces and save error feedback.
//
// Thread safety: thread-safe; mutex_ protects the state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/env.h"
#include "comm/base/steady_condition.h"
#include "comm/base/sync_mode.h"
#include "comm/codec/codec.h"
#include "comm/rpc/control_link.h"
#include "comm/rpc/trace_sender.h"
#include "proto/coordinator.pb.h"
#include "worker/client/codec_threads.h"
#include "worker/client/data_plane.h"
#include "worker/client/phase_meter.h"
#include "worker/client/session.h"
#include "worker/client/waiting_lines.h"

namespace syncline {

class Session::Impl {
 public:
  explicit Impl(const SessionOptions& options)
      : options_(options),
        timeouts_(Timeouts::Derive(options.failure_timeout)),
        codecs_(CodecRegistry::Builtin()) {}

  ~Impl() { Stop(absl::ZeroDuration()); }

  const SessionOptions& options() const { return options_; }

  absl::StatusOr<TensorId> Declare(const TensorOptions& tensor, TensorMemory weights)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<size_t> ElementsOf(TensorId tensor) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Start(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status PushPull(TensorId tensor, ConstMemoryView gradient, uint32_t samples)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status PushPull(TensorId tensor, ConstTensorMemory gradient, uint32_t samples)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Undeclare(TensorId tensor) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ScaleLearningRate(TensorId tensor, double factor)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Skip(std::span<const TensorId> tensors) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Wait(TensorId tensor, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status WaitAll(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status PullAverage(TensorId tensor, std::span<float> out, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<uint64_t> PullState(StateArray array, std::span<float> out,
                                     absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SetState(TensorId tensor, const SeedState& state)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<void>> AllocateTensor(size_t elements, DType dtype);
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);
  void Uncancel() ABSL_LOCKS_EXCLUDED(mutex_);
  bool KeepsLate(TensorId tensor) ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsReady(TensorId tensor) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReportLoss(uint64_t step, double loss, uint32_t samples)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool BeginPass(ModelPass pass) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndPass() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Barrier(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Leave() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SaveResiduals(const std::string& path) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status RestoreResiduals(const std::string& path) ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t step() ABSL_LOCKS_EXCLUDED(mutex_);
  float loss_scale() ABSL_LOCKS_EXCLUDED(mutex_);
  ContributionKind expects() ABSL_LOCKS_EXCLUDED(mutex_);
  SessionStats Stats() ABSL_LOCKS_EXCLUDED(mutex_);
  std::string device_codecs() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // kEnding: no more calls are accepted, but the data plane may still use declared
  // memory.
  enum class Phase { kDeclaring, kRunning, kEnding, kOver };

  struct Tensor {
    TensorOptions options;
    size_t elements = 0;
    TensorMemory memory = {};  // the caller's
    // FP32 copy that views are written to if they arrive as deltas and `memory` is not
    // FP32. Empty: they are written to `memory`.
    std::vector<float> view = {};
    bool landed = false;  // `memory` is up to date with `view`
    bool ready = false;
    bool keeps_late = false;  // its push codec has error feedback
    int waiters = 0;          // calls that sleep until it is ready
    uint64_t version = 0;     // number of the job's steps that it has begun
    SeedState state = {};     // optimizer state that it starts with
    // Sum of samples * gradient since the last push, if the worker accumulates.
    std::vector<float> sum = {};
    uint64_t sum_samples = 0;
    uint32_t sum_pushes = 0;

    bool is_undeclared = false;  // `memory` is the program's again

    // Whether it is sent in every step. A tensor without elements never is.
    bool is_trained() const { return !options.frozen && elements > 0; }
    // Whether steps wait for the program to push or skip it.
    bool keeps_pace() const { return is_trained() && !is_undeclared; }
  };

  // A call that waits: its deadline, and the number of cancellations before it began.
  struct Call {
    absl::Duration deadline;
    uint64_t cancels;
  };
  Call Begin(absl::Duration timeout) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return {.deadline = clock_.Now() + timeout, .cancels = cancels_};
  }
  bool IsCancelled(const Call& call) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return cancelled_ || cancels_ != call.cancels;
  }
  // Waits for any change. Returns false if the call must end: the session is over, Cancel
  // was called, or the deadline has passed.
  bool AwaitChange(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why the call ended before `what` ("tensor 'w' is ...") came true.
  absl::Status EndedEarly(const Call& call, const std::string& what) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WaitFor(TensorId tensor, const Call& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends pushes that were not sent yet, because a caller is about to wait for them.
  void Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllReady() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return unready_ == 0; }
  void MakeUnready(Tensor& tensor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns AllReady(), at the deadline or at the session's end at the latest.
  bool AwaitAllReady(absl::Duration deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Requests the newest weights of all tensors (Exchange::Settle) in modes in which they
  // may be behind. WaitFor follows.
  void Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Requests the newest weights of one tensor, and waits for them.
  absl::Status SettleOne(TensorId tensor, const Call& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WaitForAll(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t EnterBarrier() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fetches averaged weights, or with `array` optimizer state, from the servers. One call
  // at a time; others wait for their turn.
  absl::StatusOr<uint64_t> Fetch(TensorId tensor, std::optional<uint32_t> array,
                                 std::span<float> out, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnAveraged(ExchangeAveraged averaged) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnParted() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status AwaitStart(const v1::MemberMessage& declaration, const Call& call)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AwaitWelcome(const v1::MemberMessage& declaration, const Call& call)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells the coordinator that Start failed, and why.
  void GiveUpStart(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status StartDataPlane() ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends error feedback to the servers. Returns in words what is lost; empty: nothing.
  absl::StatusOr<std::string> Part() ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells the coordinator that this worker leaves. `why`: the error that caused it, or
  // empty.
  void SayGoodbye(const std::string& why);
  absl::Status WithMemories(const std::function<absl::Status(DataPlane::Memories)>& use)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckQuiet() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string NameOf(uint32_t tensor) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<ExchangeOptions> MakeExchangeOptions(
      const v1::WorkerWelcome& welcome) const;
  void OnMessage(const v1::CoordinatorMessage& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWelcome(const v1::WorkerWelcome& welcome) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the hello for a restarted coordinator: this worker's membership, and whether
  // it waits in a barrier.
  v1::MemberMessage HelloAgain() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEpochChanged(const v1::EpochChanged& change) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnReady(const ExchangeReady& is_ready) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the session with this status, which callers see once the data plane no longer
  // uses their memory.
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void Failed() ABSL_LOCKS_EXCLUDED(mutex_);
  void BeatUntilOver() ABSL_LOCKS_EXCLUDED(mutex_);
  v1::MemberMessage Beat() ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeOrder(const v1::TraceOrder& order) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendTrace() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndTrace() ABSL_LOCKS_EXCLUDED(mutex_);
  void SayThatItWaits() ABSL_LOCKS_EXCLUDED(mutex_);
  void Stop(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether this worker sums gradients over several steps of the program.
  bool Accumulates() const;
  // Adds the gradient to the tensor's sum. Returns whether an update is complete, and
  // sets `gradient` and `samples` to the mean over its pushes then.
  bool Accumulate(Tensor& tensor, ConstMemoryView& gradient, uint32_t& samples) const;
  // Contributes a gradient, or none with 0 samples. REQUIRES: CheckTurn.
  void Contribute(TensorId id, ConstMemoryView gradient, uint32_t samples)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Skips the undeclared tensors that are ready in the steps that have begun.
  void SkipUndeclared() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether all tensors that keep pace were pushed or skipped equally often.
  bool IsBetweenSteps() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // A quorum made steps without this worker: continues with `step`.
  void GoOnAt(uint64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginAt(uint64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckDeclared(TensorId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the tensor may be pushed or skipped now.
  absl::Status CheckTurn(TensorId id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckPlace(TensorId id, const Device* gradient)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckPush(TensorId id, size_t elements, uint32_t samples) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The memory that the tensor's views are written to.
  static MemoryView Open(Tensor& tensor, const Transfer& publish);
  // Copies new weights to the caller's memory, without the lock meanwhile. REQUIRES: the
  // tensor is ready.
  void LandIn(TensorId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRunning() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !status_.ok() || phase_ == Phase::kOver;
  }
  // Whether weights may be older than the last push: by the mode, or by an update of the
  // job.
  bool has_delays() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const auto mode = ParseSyncMode(options_.training.mode);
    return has_run_ahead_ || (mode.ok() && mode->has_delays());
  }
  // Whether other workers may be ahead of this one although it waits for nothing.
  bool may_be_behind() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const auto mode = ParseSyncMode(options_.training.mode);
    return has_run_ahead_ || (mode.ok() && mode->skips_versions());
  }
  // Sets how many steps this worker may be ahead from now on.
  void SetStaleness(uint64_t staleness) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  SeedRole seed_role() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return is_seeder_ ? SeedRole::kSeeder : SeedRole::kReceiver;
  }

  static std::vector<TraceTrack*> CodecTracks(uint32_t threads, TraceRecorder& recorder);

  const SessionOptions options_;
  const Timeouts timeouts_;
  const CodecRegistry codecs_;
  const SteadyClock clock_;
  const std::shared_ptr<SharedArena> arena_ = SharedArena::Create({});
  TraceRecorder recorder_{clock_};
  TraceTrack* const phases_track_ = recorder_.AddTrack("program");
  TraceTrack* const model_track_ = recorder_.AddTrack("model");
  TraceTrack* const exchange_track_ = recorder_.AddTrack("exchange");
  const std::vector<TraceTrack*> codec_tracks_ =
      CodecTracks(ThreadsForCodecs(options_.codec_threads), recorder_);
  TraceSender trace_{recorder_};
  PhaseMeter phases_{clock_};
  std::unique_ptr<ControlLink> link_;      // set by Start, before phase_ changes
  std::unique_ptr<DataPlane> data_plane_;  // set before phase_ becomes kRunning
  std::thread heart_;

  absl::Mutex mutex_;
  SteadyCondition changed_;  // anything that a user's call may wait for
  SteadyCondition over_;     // IsOver() became true: the heart wakes for nothing else
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kDeclaring;
  bool was_started_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t cancels_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);   // calls return it; OK: not over
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // becomes status_ at the end of kEnding
  std::vector<Tensor> tensors_ ABSL_GUARDED_BY(mutex_);
  std::string device_codecs_ ABSL_GUARDED_BY(mutex_);
  size_t unready_ ABSL_GUARDED_BY(mutex_) = 0;  // number of tensors that are not ready
  std::set<std::string> names_ ABSL_GUARDED_BY(mutex_);
  // The present step: all tensors that keep pace have begun the steps before it, and
  // to_begin_ of them have not begun this one.
  uint64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t to_begin_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<TensorId> undeclared_ ABSL_GUARDED_BY(mutex_);  // the trained ones
  uint64_t samples_ ABSL_GUARDED_BY(mutex_) = 0;              // of all finished steps
  uint32_t step_samples_ ABSL_GUARDED_BY(mutex_) = 0;         // of the present step
  std::unique_ptr<v1::WorkerWelcome> welcome_ ABSL_GUARDED_BY(mutex_);
  v1::MemberMessage hello_ ABSL_GUARDED_BY(mutex_);
  // Set by the welcome. HelloAgain adds the fields that change.
  std::optional<v1::HeldMembership> membership_ ABSL_GUARDED_BY(mutex_);
  std::optional<TraceSpan> pass_
      ABSL_GUARDED_BY(mutex_);  // between BeginPass and EndPass
  std::string waiting_for_ ABSL_GUARDED_BY(mutex_);
  WaitingLines waiting_lines_ ABSL_GUARDED_BY(mutex_);
  bool is_asked_for_job_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_seeder_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  // Mode ssp: the staleness that the coordinator has set, and whether it was ever above
  // 0.
  std::optional<uint64_t> staleness_ ABSL_GUARDED_BY(mutex_);
  bool has_run_ahead_ ABSL_GUARDED_BY(mutex_) = false;
  // Shards that moved before the data plane was started.
  std::vector<ShardPlace> moved_ ABSL_GUARDED_BY(mutex_);
  uint32_t members_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<uint32_t> slowest_ ABSL_GUARDED_BY(mutex_);  // of the members
  ContributionPlan contributions_ ABSL_GUARDED_BY(mutex_);
  int waiters_ ABSL_GUARDED_BY(mutex_) = 0;  // user threads blocked on other members
  // A caller has been waiting for other members since `since`, in the same step.
  struct LongWait {
    uint64_t step = 0;
    absl::Duration since = {};
    absl::Duration say_after = {};
  };
  std::optional<LongWait> long_wait_ ABSL_GUARDED_BY(mutex_);
  // One Fetch at a time; its answer is dropped if its caller no longer waits.
  bool average_under_way_ ABSL_GUARDED_BY(mutex_) = false;
  bool average_is_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<ExchangeAveraged> averaged_ ABSL_GUARDED_BY(mutex_);
  bool parted_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t barriers_entered_ ABSL_GUARDED_BY(mutex_) = 0;
  // Barriers that were entered by calls that timed out: the next calls wait for them.
  std::set<uint64_t> left_barriers_ ABSL_GUARDED_BY(mutex_);
  uint64_t barriers_released_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncline
