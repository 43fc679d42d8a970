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
// Lockstep: each step needs one PushPull or one Skip for every trained tensor. A tensor
// may begin a step once all others have begun the previous one, so tensors are never more
// than one step apart, and a worker that joins takes part from the same step for all
// tensors. Skip says that this worker has no gradient in this step, for example for a
// parameter that its batch did not use, or for the generator while the discriminator
// trains.
//
// The first worker's values seed the servers; all other workers receive them. A worker
// that joins a running job receives the current weights and takes part from the next
// step, which step() returns. The same holds for a job that resumes from a checkpoint:
// all workers receive the checkpoint's weights, and step() returns its step.
//
// Order: blocks of the tensors that were declared first (front layers) travel first,
// because the next forward needs them first. A large push delays an urgent block by at
// most the time of one block.
//
// Thread safety: any number of threads may use a Session at once, but each tensor only
// one thread at a time. There are no callbacks. The session's own threads touch declared
// memory only between PushPull and the end of the Wait that follows it. This also holds
// for a Wait that fails because the session is over: it returns once they no longer use
// gradients and weights.
//
// Timeouts and cancellation: every call that waits for other processes takes a timeout,
// and Cancel in another thread ends it. DeadlineExceeded and Cancelled from Wait,
// WaitAll, Barrier and PullAverage change nothing: the session continues, the tensor's
// gradient and weights are still in use, and the call may be repeated. A call whose
// answer has already arrived returns it, whatever its timeout and even after Cancel.
//
// Errors:
//   FailedPrecondition with Failure::kJobRefused: another job has this name, or the
//       tensors differ from those of the other workers.
//   Aborted: the coordinator dropped this worker, because it was silent or made no
//       progress for too long. Create a new Session to join again.
//   Unavailable with Failure::kRetryable: servers or coordinator were lost.
//   InvalidArgument.
// After one of the first three from Wait or PushPull the session is over, and every call
// returns that error.
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

// How the servers turn gradients into weights. Names, options and defaults are those of
// server/optimizer/README.md, which follow torch. The coordinator refuses an unknown name
// and suggests the nearest one.
struct TrainingOptions {
  NamedOptions optimizer = {.name = "sgd", .values = {{"lr", 1e-3}}};
  std::string state = "f32";  // storage of optimizer state: "f32", "bf16", "int8"
  NamedOptions schedule = {.name = "constant"};  // of the learning rate
  OptionValues gradient = {};                    // clip_global_norm, clip_value, agc, ...
  // "torch", "deepspeed" or "apex" with their options. An empty name: no loss scaling.
  NamedOptions loss_scaling = {};
  enum class NonfiniteSteps { kApply, kSkip } nonfinite_steps = NonfiniteSteps::kApply;
  // Number of pushes that make one update, and where their sum is kept.
  uint32_t accumulate_steps = 1;
  enum class Accumulate { kServer, kWorker } accumulate_on = Accumulate::kServer;
  enum class Aggregation { kRankOrder, kArrival } aggregation = Aggregation::kRankOrder;
  // Whether workers wait for each other: "bsp", "ssp" or "asp" with their options
  // (comm/base/sync_mode.h, docs/modes.md).
  NamedOptions mode = {.name = "bsp"};
};

struct SessionOptions {
  std::string coordinator = "127.0.0.1:7070";  // SYNCLINE_COORDINATOR
  std::string job = "default";                 // SYNCLINE_JOB
  std::string run_id = {};  // SYNCLINE_RUN_ID: two runs may not share one job name
  // SYNCLINE_REJOIN=1, set by launchers and elastic.run: this rank was a member of the
  // run before. Start fails with kJobOver if the other workers have left that run,
  // instead of starting another one.
  bool rejoins = false;
  uint32_t rank = 0;        // RANK, or the first of its usual substitutes (see FromEnv)
  uint32_t world_size = 1;  // WORLD_SIZE: number of workers with which the job begins
  // For a job whose workers are whole hosts: the number of training processes on all
  // hosts together, the same on every host. 0: each worker is one process.
  uint32_t ranks = 0;

  TrainingOptions training = {};
  // Name of the preset that was applied last (worker/client/presets.h), empty without
  // one. With a preset the program pushes rounds of local SGD, which some modes do not
  // support.
  std::string preset = {};
  // Codecs, checkpoints and durability (docs/settings.md). The same for all workers.
  JobSettings settings = {};  // SYNCLINE_DURABILITY, ...: VariableOf
  // Number of threads that encode and decode, beside the thread that sends and receives:
  // 0 to 64, by default half of the cores and at most 4. With 0 the thread that sends and
  // receives encodes and decodes as well, one block at a time.
  std::optional<uint32_t> codec_threads = std::nullopt;  // SYNCLINE_CODEC_THREADS

  // SYNCLINE_LR_RANGE=FIRST:LAST:STEPS, set by `syncline lr-range`: the job sweeps
  // through these learning rates and ignores its own.
  struct LearningRateRange {
    double first = 0;
    double last = 0;
    uint64_t steps = 0;
  };
  std::optional<LearningRateRange> learning_rate_range = std::nullopt;

  absl::Duration failure_timeout = kDefaultFailureTimeout;  // SYNCLINE_FAILURE_TIMEOUT
  // SYNCLINE_PATIENCE: how long the coordinator may be away. Default: DefaultPatience.
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

  // Reads the environment that `syncline run`, torchrun, Slurm, Kubernetes indexed jobs
  // and Open MPI set. The rank is the first of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK,
  // SLURM_PROCID, VC_TASK_INDEX and JOB_COMPLETION_INDEX. If none of these and no number
  // of workers is set, it is ps-lite's DMLC_WORKER_ID or DMLC_RANK. InvalidArgument names
  // the variable whose value cannot be used. FailedPrecondition: DMLC_ROLE is not a
  // worker's.
  static absl::StatusOr<SessionOptions> FromEnv();
};

struct TensorOptions {
  std::string name;
  std::vector<uint64_t> shape;
  double learning_rate_scale = 1;
  OptionValues options = {};  // optimizer options that replace the job's
  std::string state = {};     // storage of optimizer state; empty: the job's
  bool frozen = false;        // received once, never pushed
};

using TensorId = uint32_t;  // position in order of declaration

// Names one array of a tensor's optimizer state. Arrays are numbered in the order of the
// optimizer's slots: for adam, 0 is the mean and 1 the variance.
struct StateArray {
  TensorId tensor = 0;
  uint32_t number = 0;
};

struct SessionStats {
  uint64_t bytes_pushed = 0;  // message payloads sent, repetitions included
  uint64_t bytes_pulled = 0;  // message payloads received
  uint64_t resent_blocks = 0;
  uint64_t late_steps = 0;  // steps that a quorum made without this worker
  // Messages that were dropped because a server sent them for another server's block. The
  // log has details.
  uint64_t foreign_messages = 0;
  uint64_t epoch = 0;
  uint32_t members = 0;
  // The worker that the others wait for, as the coordinator sees it over tens of seconds.
  // Empty: none, or it is not known.
  std::optional<uint32_t> slowest = std::nullopt;
  WorkerPhases phases = {};  // since Start
};

// A pass of the model, which a program reports for traces.
enum class ModelPass { kForward, kBackward };

class Session {
 public:
  // Checks the options. Opens no connection.
  static absl::StatusOr<std::unique_ptr<Session>> Create(const SessionOptions& options);

  // Without a Leave before, the coordinator treats this as a crash of the worker.
  ~Session();

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Declares a tensor. `weights` holds the initial values, and receives new weights from
  // Start on: prod(shape) elements that stay valid until Undeclare, or until the session
  // is destroyed. Every worker declares the same tensors in the same order, front layers
  // first, before Start.
  // AlreadyExists: a tensor of this name exists. InvalidArgument: the shape does not fit.
  absl::StatusOr<TensorId> Declare(const TensorOptions& tensor, std::span<float> weights);
  // The same for any element type, in memory of the host or of a GPU. BF16 and FP16
  // weights are the servers' FP32 weights, rounded to nearest even. If weights arrive as
  // deltas (publish_codec), the session keeps an FP32 copy of them.
  absl::StatusOr<TensorId> Declare(const TensorOptions& tensor, TensorMemory weights);

  // Sets the optimizer state that the tensor starts with instead of zeros: all of its
  // arrays, and the number of updates they are the result of. It is used only if this
  // worker's values seed the job, so every worker sets the same. The arrays are read
  // until Start returns. FailedPrecondition: Start was called. InvalidArgument: a size
  // does not fit. Start returns InvalidArgument if the optimizer has another number of
  // arrays.
  absl::Status SetState(TensorId tensor, const SeedState& state);

  // Joins the job and blocks until all declared weights hold the job's values. Logs which
  // workers are missing ("waiting for worker 3 of 4, 12 s"). DeadlineExceeded: not all
  // were there within start_timeout or `timeout`, whichever is shorter. After any error
  // the session is over. After a timeout or Cancel the coordinator has been told that
  // this worker left.
  absl::Status Start(absl::Duration timeout = absl::InfiniteDuration());

  // Contributes this worker's gradient of one step for one tensor: the mean over
  // `samples` samples (at least 1). With loss scaling it is the gradient of loss_scale()
  // times the loss. Returns at once. Until Wait(tensor) returns, `gradient` must stay
  // valid and unchanged, and the program must neither read nor write the tensor's
  // weights. FailedPrecondition: the tensor's previous PushPull or Skip was not waited
  // for; another tensor was neither pushed nor skipped in the previous step; or the
  // tensor is frozen. Nothing is sent then, and the session continues.
  absl::Status PushPull(TensorId tensor, std::span<const float> gradient,
                        uint32_t samples);
  // The same for a gradient of any element type, which may differ from the weights'. A
  // gradient in the memory of a GPU is encoded there if comm/codec/cuda has a kernel for
  // the codec. InvalidArgument: the gradient is on a GPU that does not hold the weights.
  absl::Status PushPull(TensorId tensor, ConstTensorMemory gradient, uint32_t samples);

  // Multiplies the tensor's learning rate by `factor` from its next PushPull on, until
  // the next call: for schedules that the program computes. The factor applies to the
  // rate that the job's settings give for each step, and travels with the gradient. All
  // workers should set the same factor; if they differ, that of the worker that joined
  // first counts. InvalidArgument unless 0 <= factor <= 1e6. FailedPrecondition: before
  // Start, between PushPull and Wait, or with an optimizer that has one rate for all
  // tensors (lbfgs).
  absl::Status ScaleLearningRate(TensorId tensor, double factor);

  // Allocates memory for a gradient of `elements` elements that servers on this host read
  // in place instead of receiving a copy. The gradient pushed from it must start at its
  // beginning; the memory may be reused for other gradients. The copy is saved in mode
  // bsp without a quorum if the push codec has the memory's element type ("fp32" for
  // FP32, "bf16" for BF16). Otherwise, and for a server on another host, it is ordinary
  // memory.
  //
  // As for every gradient, do not write to it between PushPull and the end of Wait: it is
  // read during that time, and read again for a repetition. After a Wait that ended the
  // session with an error it may be written, too: a server that has not yet heard of the
  // end still sees what was pushed.
  //
  // May be called before and after Start. The memory is aligned to 4096 bytes, and its
  // contents are unspecified. It stays valid while it is referred to, even after the
  // session, and is not reused while a server reads it. Forked children do not inherit
  // it. InvalidArgument: more elements than a tensor may have. ResourceExhausted: the
  // system has no more shared memory.
  absl::StatusOr<std::shared_ptr<void>> AllocateTensor(size_t elements,
                                                       DType dtype = DType::kF32);

  // Takes the place of PushPull if this worker has no gradient for the tensor in this
  // step. The mean is then over the samples of the other workers. If all workers skip,
  // weights and optimizer state stay as they are, and the version advances. Wait follows
  // as after PushPull. Error feedback is kept. A skip counts as finite for loss scaling,
  // and as one of the accumulate_steps pushes if the worker accumulates. Fails as
  // PushPull does, and with FailedPrecondition for an optimizer that needs every gradient
  // (lbfgs): push zeros then.
  absl::Status Skip(TensorId tensor);
  // Skips all of the tensors or, on an error, none.
  absl::Status Skip(std::span<const TensorId> tensors);

  // Ends this worker's part in a tensor: its weights stay as they are, and neither they
  // nor gradients are used any more, so the program may free their memory. The session
  // skips the tensor in every step from now on; the other workers go on with it. Views of
  // it still arrive, and are dropped. Error feedback is kept until Leave, which sends it.
  // All calls about the tensor fail from now on. FailedPrecondition, and nothing changes:
  // before Start; between PushPull and Wait; in the middle of a step; for the only trained
  // tensor that is left; in modes other than bsp and with a quorum, where memory is
  // written at any time; and where Skip fails. A new Session declares all tensors again.
  absl::Status Undeclare(TensorId tensor);

  // Blocks until the tensor's weights include every member's contribution to the step
  // that was pushed last. In mode ssp, to the step `staleness` steps earlier; in mode
  // asp, only this worker's own contribution. Returns at once if the tensor has nothing
  // under way.
  absl::Status Wait(TensorId tensor, absl::Duration timeout = absl::InfiniteDuration());
  absl::Status WaitAll(absl::Duration timeout = absl::InfiniteDuration());
  // Returns whether a push that a quorum left out (SessionStats::late_steps) is added to
  // a later one, because the push codec has error feedback. If not, it is lost unless the
  // caller pushes it again. Valid after Start.
  bool KeepsLate(TensorId tensor) const;
  // Returns whether Wait would return at once. True if the session is over.
  bool IsReady(TensorId tensor) const;

  // Ends all calls that wait, in any thread, with Cancelled. Until Uncancel, new calls
  // that would have to wait fail the same way. Leave and the destructor, which wait for
  // bounded times, are not cancelled.
  void Cancel();
  void Uncancel();

  // PushPull followed by Wait.
  absl::Status PushPullAndWait(TensorId tensor, std::span<const float> gradient,
                               uint32_t samples);

  // Fetches a tensor's averaged weights (EMA or SWA) into `out`, which has the tensor's
  // size. Blocks until they have arrived. Call it between steps, so that all tensors are
  // averages over the same steps. FailedPrecondition: the optimizer keeps no average
  // (options ema_decay, swa_start).
  absl::Status PullAverage(TensorId tensor, std::span<float> out,
                           absl::Duration timeout = absl::InfiniteDuration());

  // Fetches one array of a tensor's optimizer state, and returns the number of updates it
  // is the result of. It includes all steps that this worker has pushed; in mode ssp the
  // call waits for them. FailedPrecondition: mode asp, a push of the tensor meanwhile, no
  // such array, or a frozen tensor.
  absl::StatusOr<uint64_t> PullState(StateArray array, std::span<float> out,
                                     absl::Duration timeout = absl::InfiniteDuration());

  // The step that this worker computes now: the first that not all trained tensors have
  // begun.
  uint64_t step() const;
  // The factor for the loss of this step; 1 without loss scaling.
  float loss_scale() const;
  // What the servers expect at this step: gradients, except with a few optimizers.
  ContributionKind expects() const;
  uint32_t rank() const;
  uint32_t world_size() const;
  // prod(shape) of a declared tensor; InvalidArgument for one that is not.
  absl::StatusOr<size_t> ElementsOf(TensorId tensor) const;
  SessionStats Stats() const;
  // Says where tensors in GPU memory are encoded: "on the GPU (9 tensors; 2 more by way
  // of the host: no kernel for push int4)". Start logs it. Empty before Start, and if no
  // tensor is in GPU memory.
  std::string device_codecs() const;

  // Reports this worker's loss of a step, the mean over `samples` samples, for `syncline
  // status`, metrics and learning-rate range tests. Returns at once. A loss that is not
  // finite is not shown.
  void ReportLoss(uint64_t step, double loss, uint32_t samples);

  // For traces (docs/traces.md): the model's forward or backward begins now, in the
  // present step, and ends with EndPass. A pass that has not ended when the next one
  // begins is not recorded. Returns false if no trace is open; EndPass may be left out
  // then. Any thread.
  bool BeginPass(ModelPass pass);
  void EndPass();

  // Saves this worker's error feedback (what lossy codecs have not sent yet) to a file,
  // which belongs to the weights of this step, and restores it after Start, before the
  // first PushPull. Entries with another codec or shape are skipped with a warning.
  // FailedPrecondition: gradients are under way. Unavailable: a system error, which it
  // names. NotFound. DataLoss: the file is damaged; nothing is restored.
  absl::Status SaveResiduals(const std::string& path);
  absl::Status RestoreResiduals(const std::string& path);

  // Blocks until every member of the epoch has entered the barrier. Members that die
  // meanwhile are not waited for. After DeadlineExceeded or Cancelled this member remains
  // in the barrier, and the next call waits for the same one. In modes ssp and asp the
  // call first waits for pushes under way and then fetches the newest weights, which are
  // the same for all members that have made the same steps.
  absl::Status Barrier(absl::Duration timeout = absl::InfiniteDuration());

  // Leaves the job, best after WaitAll. Sends the error feedback that is left, so that no
  // gradient is lost; the other workers continue without this one at once. Waits at most
  // failure_timeout for a step whose tensors were all pushed. Weights do not change
  // otherwise. The session is over.
  absl::Status Leave();

 private:
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace syncline
