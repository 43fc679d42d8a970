// Session: a training process's place in a job. It declares tensors, pushes their
// gradients and receives the weights that the servers make of them.
//
//   SYNCLINE_ASSIGN_OR_RETURN(SessionOptions options, SessionOptions::FromEnv());
//   options.training.optimizer = {.name = "adamw", .values = {{"lr", 1e-3}}};
//   auto session = *Session::Create(options);
//   TensorId weight = *session->Declare({.name = "fc.weight", .shape = {10, 128}},
//                                       weight_values);
//   // Blocks until enough workers have joined, then fills the weights.
//   SYNCLINE_RETURN_IF_ERROR(session->Start());
//   while (session->step() < steps) {
//     SYNCLINE_RETURN_IF_ERROR(session->Wait(weight));  // just before its layer runs
//     ... forward, backward; push each gradient as soon as it is ready ...
//     SYNCLINE_RETURN_IF_ERROR(session->PushPull(weight, gradient, samples));
//   }
//   SYNCLINE_RETURN_IF_ERROR(session->WaitAll());
//   SYNCLINE_RETURN_IF_ERROR(session->Leave());
//
// Lockstep: every step takes, of every trained tensor, one PushPull or one Skip. A tensor
// may begin a step once all others have begun the one before, so that they are never more
// than one step apart; whoever joins takes part in one and the same step of all of them.
// Skip says that this worker has no gradient: of a parameter that its batch did not use,
// of the generator while the discriminator trains.
//
// The first worker's values seed the servers; all others receive them. A worker that
// joins a running job receives the current weights and takes part from the next step;
// step() tells which one that is. So it is when a job goes on from a checkpoint: its step is
// step() then, and nobody's values seed anything.
//
// Order: blocks of tensors declared first (front layers) travel first, because the next
// forward needs them first; large pushes never hold up small urgent ones for longer than
// one block.
//
// Threads: a Session may be used by any number of threads at once; each tensor by one
// thread at a time. Callbacks there are none: the session's own threads only touch
// declared memory between PushPull and the end of the Wait that follows it. That holds for
// a Wait that fails because the session is over, too: it returns once they have let go of
// gradients and weights.
//
// Deadlines and cancelling: every call that waits for others takes a timeout, and Cancel
// in another thread ends it. DeadlineExceeded and Cancelled from Wait, WaitAll, Barrier
// and PullAverage change nothing: the session goes on, gradients and weights of the tensor
// are still in use, and the call may be made again. A call whose answer is there already
// returns it, whatever its timeout and although cancelled.
//
// Errors: FailedPrecondition with Failure::kJobRefused (another job has this name,
// tensors differ from those of the other workers), Aborted (this worker was dropped: too
// long silent or without progress; create a new Session to join again), Unavailable with
// Failure::kRetryable (servers or coordinator lost), InvalidArgument. After an error of
// the first three from Wait or PushPull the session is over and every call returns that
// error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/contribution.h"
#include "comm/base/log.h"
#include "comm/base/options.h"
#include "comm/base/step_phases.h"
#include "comm/base/timeouts.h"
#include "comm/job/job_settings.h"
#include "worker/client/seed_state.h"
#include "worker/client/tensor_memory.h"

namespace syncline {

// How the servers make weights of gradients. Names, options and defaults are those of
// server/optimizer/README.md (torch's, where torch has them); the coordinator refuses
// what it does not know with the nearest name.
struct TrainingOptions {
  NamedOptions optimizer = {.name = "sgd", .values = {{"lr", 1e-3}}};
  std::string state = "f32";  // storage of optimizer state: "f32", "bf16", "int8"
  NamedOptions schedule = {.name = "constant"};  // of the learning rate
  OptionValues gradient = {};                    // clip_global_norm, clip_value, agc, ...
  // "torch", "deepspeed" or "apex" with their options; no name: no loss scaling.
  NamedOptions loss_scaling = {};
  enum class NonfiniteSteps { kApply, kSkip } nonfinite_steps = NonfiniteSteps::kApply;
  // How many pushes make one update, and where their sum is kept.
  uint32_t accumulate_steps = 1;
  enum class Accumulate { kServer, kWorker } accumulate_on = Accumulate::kServer;
  enum class Aggregation { kRankOrder, kArrival } aggregation = Aggregation::kRankOrder;
  // How the steps of workers follow each other: "bsp", "ssp" or "asp" with their options
  // (comm/base/sync_mode.h, docs/modes.md).
  NamedOptions mode = {.name = "bsp"};
};

struct SessionOptions {
  std::string coordinator = "127.0.0.1:7070";  // SYNCLINE_COORDINATOR
  std::string job = "default";                 // SYNCLINE_JOB
  std::string run_id = {};  // SYNCLINE_RUN_ID: two runs may not share one job name
  // SYNCLINE_REJOIN=1, set by launchers and elastic.run: this rank was in the run before, and
  // fails with kJobOver, instead of beginning another one, where the others have finished it.
  bool rejoins = false;
  uint32_t rank = 0;        // RANK, or the first of its usual substitutes (see FromEnv)
  uint32_t world_size = 1;  // WORLD_SIZE: the job begins when so many workers have joined
  // Of a job whose workers are hosts: how many processes of the program there are on all of
  // them, which all hosts say alike. 0: each worker is one.
  uint32_t ranks = 0;

  TrainingOptions training = {};
  // Which was applied last (worker/client/presets.h): the program pushes rounds of local
  // SGD, and some modes have no rounds. Empty: none.
  std::string preset = {};
  // How gradients and weights travel, when the job is saved, what it begins with, what
  // outlives servers (docs/settings.md). The same for all workers.
  JobSettings settings = {};  // SYNCLINE_DURABILITY, ...: VariableOf
  // Threads of this process that encode and decode beside the one that sends and receives:
  // 0 to 64; by default half of its cores, 4 at most. With 0 that one does it, by the block.
  std::optional<uint32_t> codec_threads = std::nullopt;  // SYNCLINE_CODEC_THREADS

  // SYNCLINE_LR_RANGE=FIRST:LAST:STEPS, set by `syncline lr-range`: the job sweeps
  // through these learning rates instead of its own.
  struct LearningRateRange {
    double first = 0;
    double last = 0;
    uint64_t steps = 0;
  };
  std::optional<LearningRateRange> learning_rate_range = std::nullopt;

  absl::Duration failure_timeout = kDefaultFailureTimeout;  // SYNCLINE_FAILURE_TIMEOUT
  // SYNCLINE_PATIENCE: how long the coordinator may be away; default: DefaultPatience.
  std::optional<absl::Duration> patience = std::nullopt;
  // How long Start may wait for the other workers.
  absl::Duration start_timeout = absl::Minutes(10);
  // Mutual TLS: SYNCLINE_TLS_CERT, SYNCLINE_TLS_KEY, SYNCLINE_TLS_CA, and, where the
  // coordinator's certificate names no role, SYNCLINE_IDENTITIES. Empty: plain text.
  std::string tls_cert = {};
  std::string tls_key = {};
  std::string tls_ca = {};
  std::string identities = {};
  Logger log = {};

  // From the environment that `syncline run`, torchrun, Slurm, Kubernetes indexed jobs
  // and Open MPI set. The rank comes from the first of RANK, OMPI_COMM_WORLD_RANK,
  // PMI_RANK, SLURM_PROCID, VC_TASK_INDEX, JOB_COMPLETION_INDEX; where none of these and
  // no number of workers is set, from ps-lite's DMLC_WORKER_ID or DMLC_RANK.
  // InvalidArgument names the variable that makes no sense, FailedPrecondition a DMLC_ROLE
  // that is no worker's.
  static absl::StatusOr<SessionOptions> FromEnv();
};

struct TensorOptions {
  std::string name;
  std::vector<uint64_t> shape;
  double learning_rate_scale = 1;
  OptionValues options = {};  // of the optimizer, in place of the job's
  std::string state = {};     // the job's when empty
  bool frozen = false;        // received once, never pushed
};

using TensorId = uint32_t;  // position in order of declaration

// One array of a tensor's optimizer state, in the order of the optimizer's slots: of adam
// 0 is the mean and 1 the variance.
struct StateArray {
  TensorId tensor = 0;
  uint32_t number = 0;
};

struct SessionStats {
  uint64_t bytes_pushed = 0;  // message payloads sent, repetitions included
  uint64_t bytes_pulled = 0;  // message payloads received
  uint64_t resent_blocks = 0;
  uint64_t late_steps = 0;  // that a quorum made without this worker
  // That a server sent for blocks of another one, and that were dropped: see the log.
  uint64_t foreign_messages = 0;
  uint64_t epoch = 0;
  uint32_t members = 0;
  WorkerPhases phases = {};  // since Start
};

class Session {
 public:
  // Checks the options; connects nothing yet.
  static absl::StatusOr<std::unique_ptr<Session>> Create(const SessionOptions& options);

  // Leaves in haste if Leave was not called: the coordinator takes it for a crash.
  ~Session();

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Before Start. `weights` are the initial values, and from Start on the memory where
  // new weights land: prod(shape) elements that stay valid until the session is gone.
  // AlreadyExists for a second tensor of one name; InvalidArgument for a shape that does
  // not fit. Every worker declares the same tensors in the same order, front layers
  // first.
  absl::StatusOr<TensorId> Declare(const TensorOptions& tensor, std::span<float> weights);
  // ... of any element type, in memory of the host or of a GPU: `weights` are then that
  // many elements. BF16 and FP16 weights are the servers' rounded to nearest even. Where
  // views come as deltas (publish_codec) the session keeps them in FP32 beside.
  absl::StatusOr<TensorId> Declare(const TensorOptions& tensor, TensorMemory weights);

  // What the tensor's optimizer begins with where this worker's values become the job's,
  // instead of zeros: all of its arrays, as they are after so many updates. They are read
  // until Start returns. Before Start; every worker says the same. FailedPrecondition
  // after it; InvalidArgument for sizes that do not fit, and from Start for a number of
  // arrays that the optimizer has not.
  absl::Status SetState(TensorId tensor, const SeedState& state);

  // Joins the job and blocks until all declared weights hold the job's values. Says who
  // is missing through the logger ("waiting for worker 3 of 4, 12 s"). DeadlineExceeded
  // after start_timeout or `timeout`, whichever is shorter. After any error the session is
  // over; one that was cancelled or came too late has said goodbye to the coordinator.
  absl::Status Start(absl::Duration timeout = absl::InfiniteDuration());

  // Hands over this worker's gradient of one step for one tensor: the mean over `samples`
  // samples (at least 1). Returns at once. From here until Wait(tensor) returns `gradient`
  // and the tensor's weights are the session's, in memory of any type: the gradient stays
  // valid and unchanged, and the program neither reads nor writes the weights.
  // FailedPrecondition when the tensor's previous PushPull or Skip was not waited for,
  // when another tensor has neither been pushed nor skipped in the step before (nothing is
  // sent then, and the session goes on), or when it is frozen. With loss scaling it is the
  // gradient of loss_scale() times the loss.
  absl::Status PushPull(TensorId tensor, std::span<const float> gradient,
                        uint32_t samples);
  // ... of any element type, whatever that of the weights is. It is read where it lies: one
  // of a GPU is encoded there if the kernels of comm/codec/cuda know the codec.
  // InvalidArgument for a gradient of a GPU that does not have the tensor's weights.
  absl::Status PushPull(TensorId tensor, ConstTensorMemory gradient, uint32_t samples);

  // What the tensor's learning rate, as the job's settings have it at each step, is
  // multiplied with from the tensor's next PushPull on, until it is said anew: for
  // schedules that the program computes. It travels with the gradient. All workers say the
  // same at each step; where they do not, the one that joined the job first decides.
  // InvalidArgument unless 0 <= factor <= 1e6; FailedPrecondition before Start, while the
  // tensor is under way, and with an optimizer that has one rate for all tensors (lbfgs).
  absl::Status ScaleLearningRate(TensorId tensor, double factor);

  // Memory for one gradient of `elements` elements, which servers of this host read where it
  // lies instead of a copy. Any gradient may be put there, and pushed from its beginning, as
  // often as one likes; it saves the copy where mode is bsp without a quorum and the push
  // codec is what the memory holds: "fp32" of FP32, "bf16" of BF16. Otherwise, and where a
  // server is on another host, it is memory like any other.
  //
  // The rule is that of all gradients: from PushPull until Wait has returned nobody writes
  // there, since it is read until then, and whatever is sent again is read there again. When
  // Wait returns an error that ends the session, too, it may be written: a server that has
  // not heard of that end still sees what was pushed.
  //
  // At any time, before Start or after it. Aligned to 4096 bytes; the first contents are not
  // specified. It lives as long as it is referred to, also after the session, which does not
  // give it to others while it is read. Children that are forked do not have it.
  // InvalidArgument for more elements than a tensor may have; ResourceExhausted when the
  // system has no more shared memory.
  absl::StatusOr<std::shared_ptr<void>> AllocateTensor(size_t elements,
                                                       DType dtype = DType::kF32);

  // Instead of PushPull: this worker has no gradient of the tensor in this step. The mean
  // is over the samples of the others; when all skip, weights and optimizer state stay as
  // they are and the version advances. Wait follows as after PushPull. What lossy
  // encodings have kept stays, and a skip is finite for loss scaling. When the worker
  // accumulates, it is one of the accumulate_steps pushes. Fails as PushPull, and
  // FailedPrecondition with an optimizer that needs every gradient (lbfgs): push zeros.
  absl::Status Skip(TensorId tensor);
  // All of them or, after an error, none.
  absl::Status Skip(std::span<const TensorId> tensors);

  // Blocks until the tensor's weights include every member's contribution to the step
  // pushed last; in mode ssp, to the step that lies `staleness` before it; in mode asp,
  // this worker's own. Returns at once when nothing is under way.
  absl::Status Wait(TensorId tensor, absl::Duration timeout = absl::InfiniteDuration());
  absl::Status WaitAll(absl::Duration timeout = absl::InfiniteDuration());
  // Whether what a quorum leaves out (SessionStats::late_steps) of the tensor's pushes goes
  // with a later one, as its push codec has error feedback. Otherwise it is gone, unless the
  // caller pushes it again. Known once the session has started.
  bool KeepsLate(TensorId tensor) const;
  // Whether Wait would return at once; also when the session has failed or is over.
  bool IsReady(TensorId tensor) const;

  // Ends what waits now, in any thread, with Cancelled, and whatever would have to wait
  // until Uncancel. Leave and the destructor wait for bounded times and are not cancelled.
  void Cancel();
  void Uncancel();

  // PushPull and Wait in one: the blocking form.
  absl::Status PushPullAndWait(TensorId tensor, std::span<const float> gradient,
                               uint32_t samples);

  // The averaged weights (EMA or SWA) of a tensor, from the servers: blocks until they
  // are in `out`, which has the tensor's size. Best when nothing is under way, so that
  // all tensors are averages of the same steps. FailedPrecondition when the job's
  // optimizer keeps none (options ema_decay, swa_start).
  absl::Status PullAverage(TensorId tensor, std::span<float> out,
                           absl::Duration timeout = absl::InfiniteDuration());

  // An array of a tensor's optimizer state, and of how many updates it is: after all steps
  // that this worker has pushed, for which it waits in mode ssp. FailedPrecondition in mode
  // asp, if it is pushed meanwhile, if there is no such array, and if the tensor is frozen.
  absl::StatusOr<uint64_t> PullState(StateArray array, std::span<float> out,
                                     absl::Duration timeout = absl::InfiniteDuration());

  // The number of the step that this worker computes now: the next one that not all
  // trained tensors have begun.
  uint64_t step() const;
  // What to multiply the loss of this step with; 1 without loss scaling.
  float loss_scale() const;
  // What the servers take at this step: gradients, but for a few optimizers.
  ContributionKind expects() const;
  uint32_t rank() const;
  uint32_t world_size() const;
  // prod(shape) of a declared tensor; InvalidArgument for one that is not.
  absl::StatusOr<size_t> ElementsOf(TensorId tensor) const;
  SessionStats Stats() const;
  // Where the codecs run of tensors that lie in memory of GPUs, in words: "on the GPU (9
  // tensors; 2 more by way of the host: no kernel for push int4)". Start logs it, too. Empty
  // where none lies there, and before.
  std::string device_codecs() const;

  // Tells the coordinator the loss of a step of this worker, the mean over `samples`
  // samples: for `syncline status`, metrics and learning-rate range tests.
  // Returns at once; a loss that is not finite is not shown.
  void ReportLoss(uint64_t step, double loss, uint32_t samples);

  // Writes what lossy encodings keep of this worker's gradients to a file, which belongs
  // to the weights of this step, and reads it again: after Start and before the first
  // PushPull. What was saved under another codec or shape is left out, with a warning.
  // FailedPrecondition while gradients are under way; Unavailable names what the system
  // says; NotFound; DataLoss for a damaged file, of which nothing is taken.
  absl::Status SaveResiduals(const std::string& path);
  absl::Status RestoreResiduals(const std::string& path);

  // Blocks until every member of the epoch is in a barrier. Members that die meanwhile
  // are not waited for. After DeadlineExceeded or Cancelled this member is still in the
  // barrier: the next call waits for the same one. In modes ssp and asp it waits for what
  // is under way first, and the weights afterwards are the newest: the same for all members
  // that have made the same steps.
  absl::Status Barrier(absl::Duration timeout = absl::InfiniteDuration());

  // A clean goodbye, best after WaitAll: hands over what lossy encodings have kept, so
  // that no gradient is lost, and the others go on without this worker at once. A step that
  // was pushed whole is waited for, failure_timeout at most. Weights stay as they are
  // otherwise. The session is over.
  absl::Status Leave();

 private:
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace syncline
