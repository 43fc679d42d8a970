/* Syncline's client for C, and for every language that can call C: the place of a
 * training process in a job. It declares tensors, pushes their gradients and receives
 * the weights that the servers make of them. worker/client/session.h is the same
 * interface in C++, with more detail.
 *
 *   syncline_options* options = NULL;
 *   syncline_options_from_env(&options);
 *   syncline_options_set(options, "optimizer", "adamw:lr=0.001");
 *   syncline_session* session = NULL;
 *   if (syncline_session_create(options, &session) != SYNCLINE_OK)
 *     die(syncline_last_error());
 *   uint32_t weight;
 *   syncline_declare(session,
 *                    &(syncline_tensor){.struct_size = sizeof(syncline_tensor),
 *                                       .name = "fc.weight",
 *                                       .dimensions = 2,
 *                                       .shape = (uint64_t[]){10, 128},
 *                                       .dtype = SYNCLINE_FLOAT32,
 *                                       .data = weights},
 *                    &weight);
 *   syncline_start(session, SYNCLINE_FOREVER);
 *   for (int step = 0; step < steps; ++step) {
 *     syncline_wait(session, weight, SYNCLINE_FOREVER);  // just before its layer runs
 *     ... forward, backward ...
 *     syncline_push_pull(session, weight, gradient, SYNCLINE_FLOAT32, samples);
 *   }
 *   syncline_wait_all(session, SYNCLINE_FOREVER);
 *   syncline_leave(session);
 *   syncline_session_free(session);
 *   syncline_options_free(options);
 *
 * Errors: every function that can fail returns a syncline_code, and SYNCLINE_OK (0) on
 * success. syncline_last_error() says what happened, where, and what to do. It belongs
 * to the calling thread. Codes are those of absl and gRPC.
 *
 * Threads: one thread at a time may use an options handle. Any number of threads may
 * use a session at the same time, but each tensor only one thread at a time. While a
 * thread waits, another one may call syncline_cancel. syncline_session_free must be
 * the last call.
 *
 * Ownership: the caller owns handles until it calls their _free function. The library
 * copies strings and shapes that it is given. It owns the strings that it returns;
 * each function says how long they live.
 *
 * Stability: within SYNCLINE_ABI_VERSION, functions and codes are added but never
 * changed or removed. A struct begins with struct_size, which the caller sets to
 * sizeof. New fields are added at its end; a field that an older caller does not know
 * is taken as zero. */
#pragma once

/* NOLINTBEGIN(modernize-*): this is C */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SYNCLINE_API __attribute__((visibility("default")))
#else
#define SYNCLINE_API
#endif

/* Enumerations are ints in C++ too, so that a value of a later version, or a wrong
 * one, is not undefined behaviour. */
#ifdef __cplusplus
#define SYNCLINE_INT : int
#else
#define SYNCLINE_INT
#endif

#define SYNCLINE_ABI_VERSION 1

/* Returns the version of the loaded library, such as "0.1.0". It lives forever. */
SYNCLINE_API const char* syncline_version(void);
/* Returns SYNCLINE_ABI_VERSION of the loaded library. */
SYNCLINE_API uint32_t syncline_abi_version(void);

typedef enum syncline_code SYNCLINE_INT {
  SYNCLINE_OK = 0,
  SYNCLINE_CANCELLED = 1, /* by syncline_cancel; the session continues */
  SYNCLINE_UNKNOWN = 2,
  SYNCLINE_INVALID_ARGUMENT = 3,  /* nothing was done; correct the call */
  SYNCLINE_DEADLINE_EXCEEDED = 4, /* the call's timeout; the session continues */
  SYNCLINE_NOT_FOUND = 5,
  SYNCLINE_ALREADY_EXISTS = 6,
  SYNCLINE_PERMISSION_DENIED = 7,
  SYNCLINE_RESOURCE_EXHAUSTED = 8, /* out of memory: this process or a server */
  /* Not possible now; with exit code 7: the job was refused. */
  SYNCLINE_FAILED_PRECONDITION = 9,
  /* The coordinator dropped this worker; a new session joins again. */
  SYNCLINE_ABORTED = 10,
  SYNCLINE_OUT_OF_RANGE = 11,
  SYNCLINE_UNIMPLEMENTED = 12,
  SYNCLINE_INTERNAL = 13,
  /* Servers or coordinator were lost; a new session may succeed. */
  SYNCLINE_UNAVAILABLE = 14,
  SYNCLINE_DATA_LOSS = 15,
  SYNCLINE_UNAUTHENTICATED = 16
} syncline_code;

/* Returns the message of this thread's last failed call; "" if no call has failed.
 * Valid until this thread's next call. */
SYNCLINE_API const char* syncline_last_error(void);
/* Returns the exit code with which the process should end because of this thread's
 * last error, so that launchers know what to do: 138 means start again, 7 means that
 * the job was refused, and so on (docs/errors.md). 0: no call of this thread has
 * failed. */
SYNCLINE_API int syncline_last_error_exit_code(void);

/* Returns the rank of a group that this thread's last error is about: the rank that
 * died, hangs, left, or made another call. -1: the error is about no rank. */
SYNCLINE_API int syncline_last_error_rank(void);

/* ---- options ---- */
typedef struct syncline_options syncline_options;

/* Makes options with the defaults. Does not read the environment. */
SYNCLINE_API syncline_code syncline_options_new(syncline_options** out);
/* Makes options from the environment that `syncline run`, torchrun, Slurm, Kubernetes
 * and Open MPI set (worker/client/README.md). */
SYNCLINE_API syncline_code syncline_options_from_env(syncline_options** out);
SYNCLINE_API void syncline_options_free(syncline_options* options);

/* Sets one option from a string. Fails with INVALID_ARGUMENT, which names the key or
 * the value and the nearest known one. Optimizers, schedules and gradient transforms
 * are known only to the coordinator, which refuses unknown ones at syncline_start.
 * Keys:
 *
 *   coordinator, job, run_id
 *   rejoin             1: this rank was in the run before; syncline_start fails if the
 *                      others have left that run, instead of starting another one
 *   rank, world_size
 *   ranks              for jobs whose workers are hosts: number of processes on all
 *                      hosts; 0: each worker is one process
 *   optimizer          "adamw:lr=0.001"
 *   state              storage of optimizer state: "f32", "bf16", "int8"
 *   schedule           "cosine:..."
 *   gradient           "clip_global_norm=1"
 *   loss_scaling       "torch:..."
 *   nonfinite_steps    apply | skip
 *   accumulate_steps, accumulate_on (server | worker)
 *   aggregation        rank_order | arrival
 *   mode               "bsp", "bsp:quorum=3,grace_ms=20", "ssp:staleness=3" or "ssp:3",
 *                      "asp:age_power=1"
 *   push, publish      codecs
 *   preset             diloco, streaming-diloco, sparseloco, post-local-sgd, demo:
 *                      sets optimizer, push and publish (docs/local_sgd.md)
 *   codec_threads      "auto", 0 to 64
 *   checkpoint_every   "500 steps", "10 min"; and the other settings that must be
 *                      equal on all workers of a job (docs/settings.md)
 *   failure_timeout    "10s"
 *   start_timeout      "10m"
 *   tls_cert, tls_key, tls_ca, identities */
SYNCLINE_API syncline_code syncline_options_set(syncline_options* options,
                                                const char* key, const char* value);
/* Returns the value of an option in the form that syncline_options_set accepts; NULL
 * for an unknown key. Valid until the next call with these options. */
SYNCLINE_API const char* syncline_options_get(syncline_options* options, const char* key);

typedef enum syncline_log_level SYNCLINE_INT {
  SYNCLINE_LOG_DEBUG = 0,
  SYNCLINE_LOG_INFO = 1,
  SYNCLINE_LOG_WARNING = 2,
  SYNCLINE_LOG_ERROR = 3
} syncline_log_level;
/* Receives a line of the session's log. `message` is valid during the call. Any thread
 * may call it, one at a time, until the session is freed. It must not call the
 * session. */
typedef void (*syncline_log_function)(void* context, syncline_log_level level,
                                      const char* message);
/* Sets the function that receives the log. NULL: nothing is logged. Without this call,
 * lines from INFO on go to standard error; they include what the program waits for. */
SYNCLINE_API void syncline_options_set_log(syncline_options* options,
                                           syncline_log_function log, void* context);

/* ---- session ---- */
typedef struct syncline_session syncline_session;

typedef enum syncline_dtype SYNCLINE_INT {
  SYNCLINE_FLOAT32 = 0,
  SYNCLINE_BFLOAT16 = 1,
  SYNCLINE_FLOAT16 = 2,
  /* Only for collective operations: */
  SYNCLINE_FLOAT64 = 3,
  SYNCLINE_INT64 = 4,
  SYNCLINE_INT32 = 5,
  SYNCLINE_INT8 = 6,
  SYNCLINE_UINT8 = 7
} syncline_dtype;

/* Timeouts are in milliseconds. 0: the call does not wait; if the result is not there,
 * it fails with DEADLINE_EXCEEDED. */
#define SYNCLINE_FOREVER (-1)

/* Checks the options, without opening a connection. The options may be freed
 * afterwards. A session belongs to the process that made it: in a child made by fork
 * its calls fail, and syncline_session_free does nothing. */
SYNCLINE_API syncline_code syncline_session_create(const syncline_options* options,
                                                   syncline_session** out);
/* Frees the session; NULL is allowed. Without a syncline_leave before, the coordinator
 * treats this as a crash. REQUIRES: no other call is in progress. */
SYNCLINE_API void syncline_session_free(syncline_session* session);

typedef struct syncline_tensor {
  size_t struct_size; /* sizeof(syncline_tensor) */
  const char* name;
  uint32_t dimensions; /* 0: a scalar */
  const uint64_t* shape;
  syncline_dtype dtype; /* of data */
  /* Initial values. From syncline_start on, new weights arrive here. prod(shape)
   * elements, contiguous. They must stay valid until the session is freed or the tensor
   * undeclared. */
  void* data;
  double learning_rate_scale; /* 0 means 1 */
  /* Optimizer options that replace the job's: "weight_decay=0,lr=0.01". NULL: none. */
  const char* options;
  const char* state; /* storage: "f32", "bf16", "int8"; NULL: the job's */
  int32_t frozen;    /* not 0: received once, never pushed */
  /* Where `data` is. 0: in host memory. n: in memory of CUDA device n - 1, aligned to
   * 16 bytes (see syncline_device_check). It has 64 bits because the struct of older
   * callers ends with padding, where a field of 32 bits would be. */
  uint64_t device;
} syncline_tensor;

/* Checks whether tensors can be in the memory of a device, numbered as in
 * syncline_tensor. If so, the session's threads encode gradients and decode weights
 * there, on their own streams, and only encoded data crosses the bus. Fails with
 * UNAVAILABLE if the library's CUDA module, the driver or the device is missing, and
 * with INVALID_ARGUMENT if there are fewer devices. Initialises the CUDA driver:
 * children made by fork cannot use CUDA afterwards. */
SYNCLINE_API syncline_code syncline_device_check(uint64_t device);

/* Declares a tensor. Every worker declares the same tensors in the same order, front
 * layers first, before syncline_start. */
SYNCLINE_API syncline_code syncline_declare(syncline_session* session,
                                            const syncline_tensor* tensor, uint32_t* id);

/* Joins the job and blocks until all declared weights hold the job's values. After any
 * error, including DEADLINE_EXCEEDED and CANCELLED, the session is over and must be
 * freed. */
SYNCLINE_API syncline_code syncline_start(syncline_session* session, int64_t timeout_ms);

/* Contributes this worker's gradient of one step: the mean over `samples` samples.
 * Returns at once. `gradient` has prod(shape) elements of `dtype`, contiguous, in host
 * memory. It must stay valid and unchanged until the tensor was waited for. */
SYNCLINE_API syncline_code syncline_push_pull(syncline_session* session, uint32_t tensor,
                                              const void* gradient, syncline_dtype dtype,
                                              uint32_t samples);
/* The same for a gradient in the memory of a device, numbered as in syncline_tensor.
 * It must be the device of the tensor's weights, with 16 bytes' alignment, otherwise
 * the call fails with INVALID_ARGUMENT. Device 0 is the same as syncline_push_pull.
 * Before the call, the device must have finished writing the gradient and using the
 * tensor's weights. After the wait that follows, all streams of the device see the new
 * weights. */
SYNCLINE_API syncline_code syncline_push_pull_from(syncline_session* session,
                                                   uint32_t tensor, const void* gradient,
                                                   syncline_dtype dtype, uint64_t device,
                                                   uint32_t samples);
/* Memory for one gradient that servers on this host read in place instead of receiving
 * a copy. The copy is saved in mode bsp without a quorum if the push codec has the
 * memory's type ("fp32" for FLOAT32, "bf16" for BFLOAT16). Otherwise it is ordinary
 * memory. The gradient pushed from it must start at its beginning. Like every gradient
 * it must not change from push_pull until the tensor was waited for, or the session is
 * over.
 *
 * It may be allocated before and after syncline_start, and may outlive the session. It
 * is aligned to 4096 bytes; its contents are unspecified. Children made by fork do not
 * inherit it. Fails with RESOURCE_EXHAUSTED if the system has no more shared memory. */
typedef struct syncline_memory syncline_memory;
SYNCLINE_API syncline_code syncline_memory_new(syncline_session* session,
                                               uint64_t elements, syncline_dtype dtype,
                                               syncline_memory** out);
SYNCLINE_API void* syncline_memory_data(const syncline_memory* memory);
/* NULL is allowed. */
SYNCLINE_API void syncline_memory_free(syncline_memory* memory);
/* Multiplies the tensor's learning rate by `factor` (0 to 1e6) from its next push_pull
 * on: for schedules that the program computes. All workers should set the same factor;
 * if they differ, that of the worker that joined first counts. Fails while the tensor
 * is under way. */
SYNCLINE_API syncline_code syncline_scale_learning_rate(syncline_session* session,
                                                        uint32_t tensor, double factor);
/* Replaces push_pull for tensors without a gradient in this step. Skips all of them
 * or, on an error, none. */
SYNCLINE_API syncline_code syncline_skip(syncline_session* session,
                                         const uint32_t* tensors, size_t count);
/* Blocks until the tensor's weights include every member's contribution to the step
 * pushed last. After DEADLINE_EXCEEDED or CANCELLED its gradient and weights are still
 * in use, and the call may be repeated. */
SYNCLINE_API syncline_code syncline_wait(syncline_session* session, uint32_t tensor,
                                         int64_t timeout_ms);
SYNCLINE_API syncline_code syncline_wait_all(syncline_session* session,
                                             int64_t timeout_ms);
/* Ends this worker's part in a tensor, so that the memory of its weights and gradients
 * may be freed. The session skips the tensor in every step from now on; the other
 * workers go on with it. All calls about the tensor fail from now on. Only in mode bsp
 * without a quorum, between two steps, after the wait for the tensor, and not for the
 * last trained tensor; otherwise FAILED_PRECONDITION, and nothing changes. */
SYNCLINE_API syncline_code syncline_undeclare(syncline_session* session, uint32_t tensor);
/* Returns 1 if syncline_wait would return at once, which includes a failed session; 0
 * if not; -1 for an unknown tensor. */
SYNCLINE_API int syncline_is_ready(const syncline_session* session, uint32_t tensor);
/* Ends all calls that wait now, in any thread, with CANCELLED. Until
 * syncline_uncancel, new calls that would have to wait fail in the same way.
 * syncline_leave and syncline_session_free wait for bounded times and are not
 * cancelled. Any thread may call it, but not a signal handler. */
SYNCLINE_API void syncline_cancel(syncline_session* session);
SYNCLINE_API void syncline_uncancel(syncline_session* session);

/* Fetches the averaged weights (EMA, SWA) of a tensor as float32: prod(shape)
 * elements. */
SYNCLINE_API syncline_code syncline_pull_average(syncline_session* session,
                                                 uint32_t tensor, float* out,
                                                 int64_t timeout_ms);

/* Fetches array number `array` of a tensor's optimizer state, as float32: prod(shape)
 * elements. Arrays are in the order of server/optimizer: for adam, 0 is the mean and 1
 * the variance. Writes to *updates, unless it is NULL, the number of updates that the
 * state is the result of. The state includes all steps that this worker has pushed; in
 * mode ssp the call waits for them, and the weights then include them too. Fails with
 * FAILED_PRECONDITION in mode asp, if the tensor is pushed meanwhile, or if there is
 * no such array. */
SYNCLINE_API syncline_code syncline_pull_state(syncline_session* session, uint32_t tensor,
                                               uint32_t array, float* out,
                                               uint64_t* updates, int64_t timeout_ms);
/* Before syncline_start: sets all arrays of the optimizer state that the tensor begins
 * with if the job has no state yet, and the number of updates that they are the result
 * of. The arrays must stay valid until syncline_start has returned. Every worker sets
 * the same. */
SYNCLINE_API syncline_code syncline_set_state(syncline_session* session, uint32_t tensor,
                                              uint64_t updates,
                                              const float* const* arrays, size_t count);

/* Returns what happens to a push that a quorum leaves out (syncline_stats.late_steps).
 * 1: the tensor's push codec keeps it (error feedback) and adds it to the next push.
 * 0: it is lost, unless the caller pushes it again. -1: unknown tensor. Valid after
 * syncline_start. */
SYNCLINE_API int syncline_keeps_late(const syncline_session* session, uint32_t tensor);

/* Returns the step that this worker computes now. */
SYNCLINE_API uint64_t syncline_step(const syncline_session* session);
/* Returns the factor for the loss of this step; 1 without loss scaling. */
SYNCLINE_API float syncline_loss_scale(const syncline_session* session);
SYNCLINE_API uint32_t syncline_rank(const syncline_session* session);
SYNCLINE_API uint32_t syncline_world_size(const syncline_session* session);
/* Reports this worker's loss of a step, the mean over `samples` samples, for status,
 * metrics and learning-rate range tests. Returns at once. */
SYNCLINE_API void syncline_report_loss(syncline_session* session, uint64_t step,
                                       double loss, uint32_t samples);

typedef enum syncline_pass SYNCLINE_INT {
  SYNCLINE_FORWARD = 1,
  SYNCLINE_BACKWARD = 2
} syncline_pass;

/* For `syncline trace`: the model's forward or backward begins now, in the present
 * step, and ends with syncline_end_pass. A pass that has not ended when the next one
 * begins is not recorded. Returns 1 if the pass is recorded; 0 if no trace is open,
 * and then the end may be left out; -1 for an invalid session or pass. */
SYNCLINE_API int syncline_begin_pass(syncline_session* session, syncline_pass pass);
SYNCLINE_API void syncline_end_pass(syncline_session* session);

typedef struct syncline_stats {
  size_t struct_size;
  uint64_t bytes_pushed;
  uint64_t bytes_pulled;
  uint64_t resent_blocks;
  uint64_t epoch;
  uint32_t members;
  /* Number of steps since start, and the seconds that this worker spent in each phase:
   * compute, encode, push, others, publish, decode, in this order. Together they are
   * all of its time. In all phases except compute, the program waited. */
  uint64_t steps;
  double phase_seconds[6];
  /* Steps that a quorum made without this worker; its pushes for them do not count. */
  uint64_t late_steps;
  /* The rank that the others wait for, as the coordinator sees it over tens of seconds.
   * -1: none, or it is not known. */
  int64_t slowest_rank;
} syncline_stats;
/* Fills the fields that fit into stats->struct_size. */
SYNCLINE_API syncline_code syncline_get_stats(const syncline_session* session,
                                              syncline_stats* stats);

/* Says where tensors in memory of devices are encoded and decoded: "on the GPU (9
 * tensors; 2 more by way of the host: no kernel for push int4)". syncline_start logs
 * it too. "" if no tensor is on a device, and before syncline_start. Valid until this
 * thread's next call of this function. */
SYNCLINE_API const char* syncline_device_codecs(const syncline_session* session);

/* Save this worker's error feedback (what lossy codecs have not sent yet) to a file,
 * and restore it. */
SYNCLINE_API syncline_code syncline_save_residuals(syncline_session* session,
                                                   const char* path);
SYNCLINE_API syncline_code syncline_restore_residuals(syncline_session* session,
                                                      const char* path);

/* Blocks until every member of the epoch has entered the barrier. After
 * DEADLINE_EXCEEDED or CANCELLED this member remains in the barrier, and the next call
 * waits for the same one. */
SYNCLINE_API syncline_code syncline_barrier(syncline_session* session,
                                            int64_t timeout_ms);
/* Leaves the job, best after wait_all. Waits for a step whose tensors were all pushed,
 * at most failure_timeout. The session is over. */
SYNCLINE_API syncline_code syncline_leave(syncline_session* session);

/* ---- rounds of local SGD ---- */
/* How many local steps this worker takes before it synchronises, if the workers differ
 * in speed: in proportion to its speed, so that all rounds take about as long
 * (docs/local_sgd.md). A program declares one more tensor, of SYNCLINE_ROUNDS_ELEMENTS
 * zeros of FLOAT32 with options "mean=1", and in each round
 *
 *   takes syncline_rounds_steps(rounds) steps, in `seconds` without waiting for others;
 *   syncline_rounds_note(rounds, steps, seconds);
 *   syncline_rounds_write(rounds, rank, pushed, SYNCLINE_ROUNDS_ELEMENTS);
 *   pushes `pushed` for that tensor, and its weights for the others, with all samples
 *   of the round; waits for all tensors;
 *   syncline_rounds_read(rounds, rank, tensor, SYNCLINE_ROUNDS_ELEMENTS);
 *
 * These functions do not communicate. One thread at a time may use the handle. */
#define SYNCLINE_ROUNDS_ELEMENTS 512
typedef struct syncline_rounds syncline_rounds;

/* `text` is "adaptive:most=100,least=10", or "adaptive:100" for short: 100 steps for the
 * fastest worker, and at least 10 (by default 1) for every other one. */
SYNCLINE_API syncline_code syncline_rounds_new(const char* text, syncline_rounds** out);
/* NULL is allowed. */
SYNCLINE_API void syncline_rounds_free(syncline_rounds* rounds);
/* Returns the number of steps of the round that begins. A worker that was not measured
 * yet takes a quarter of the most. */
SYNCLINE_API uint64_t syncline_rounds_steps(const syncline_rounds* rounds);
SYNCLINE_API uint64_t syncline_rounds_most(const syncline_rounds* rounds);
SYNCLINE_API uint64_t syncline_rounds_least(const syncline_rounds* rounds);
/* Both must be above 0. Steps that were not timed, such as the first one of a program,
 * may be left out of both. */
SYNCLINE_API syncline_code syncline_rounds_note(syncline_rounds* rounds, uint64_t steps,
                                                double seconds);
SYNCLINE_API syncline_code syncline_rounds_write(const syncline_rounds* rounds,
                                                 uint32_t rank, float* values,
                                                 size_t count);
SYNCLINE_API syncline_code syncline_rounds_read(syncline_rounds* rounds, uint32_t rank,
                                                const float* values, size_t count);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-*) */

#include "syncline_collective.h"
