/* Syncline's client for C, and for every language that can call C: a training process's place in a job. It declares
 * tensors, pushes their gradients and receives the weights that the servers make of them. worker/client/session.h is
 * the same thing in C++ and says more.
 *
 *   syncline_options* options = NULL;
 *   syncline_options_from_env(&options);
 *   syncline_options_set(options, "optimizer", "adamw:lr=0.001");
 *   syncline_session* session = NULL;
 *   if (syncline_session_create(options, &session) != SYNCLINE_OK) die(syncline_last_error());
 *   uint32_t weight;
 *   syncline_declare(session, &(syncline_tensor){.struct_size = sizeof(syncline_tensor), .name = "fc.weight",
 *       .dimensions = 2, .shape = (uint64_t[]){10, 128}, .dtype = SYNCLINE_FLOAT32, .data = weights}, &weight);
 *   syncline_start(session, SYNCLINE_FOREVER);
 *   for (int step = 0; step < steps; ++step) {
 *     syncline_wait(session, weight, SYNCLINE_FOREVER);            // just before its layer runs
 *     ... forward, backward ...
 *     syncline_push_pull(session, weight, gradient, SYNCLINE_FLOAT32, samples);
 *   }
 *   syncline_wait_all(session, SYNCLINE_FOREVER);
 *   syncline_leave(session);
 *   syncline_session_free(session);
 *   syncline_options_free(options);
 *
 * Errors: every function that can fail returns a syncline_code, SYNCLINE_OK (0) on success. What happened, where and
 * what to do is in syncline_last_error(), which belongs to the calling thread. Codes are absl's and gRPC's.
 *
 * Threads: an options handle belongs to one thread at a time. A session may be used by any number of threads at once,
 * each tensor by one thread at a time. Waiting functions may be called in one thread while another one calls
 * syncline_cancel. syncline_session_free must be the last call.
 *
 * Ownership: handles belong to the caller until their _free. Strings and shapes given in are copied. Strings given
 * out belong to the library and say how long they live.
 *
 * Stability: functions and codes are added, never changed or removed, within SYNCLINE_ABI_VERSION. A struct begins
 * with struct_size, which the caller sets to sizeof; fields are added at the end, and what an older caller does not
 * know is zero.
 */
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

/* Enumerations are ints in C++, too: a value of a later version, or a wrong one, is no undefined behaviour. */
#ifdef __cplusplus
#define SYNCLINE_INT : int
#else
#define SYNCLINE_INT
#endif

#define SYNCLINE_ABI_VERSION 1

/* The version of the library that was loaded, "0.1.0"; lives forever. */
SYNCLINE_API const char* syncline_version(void);
/* SYNCLINE_ABI_VERSION of the library that was loaded. */
SYNCLINE_API uint32_t syncline_abi_version(void);

typedef enum syncline_code SYNCLINE_INT {
  SYNCLINE_OK = 0,
  SYNCLINE_CANCELLED = 1, /* syncline_cancel; the session goes on */
  SYNCLINE_UNKNOWN = 2,
  SYNCLINE_INVALID_ARGUMENT = 3,  /* nothing has happened; correct the call */
  SYNCLINE_DEADLINE_EXCEEDED = 4, /* the call's timeout; the session goes on */
  SYNCLINE_NOT_FOUND = 5,
  SYNCLINE_ALREADY_EXISTS = 6,
  SYNCLINE_PERMISSION_DENIED = 7,
  SYNCLINE_RESOURCE_EXHAUSTED = 8,  /* memory of this process or of a server */
  SYNCLINE_FAILED_PRECONDITION = 9, /* not now; with exit code 7: the job was refused */
  SYNCLINE_ABORTED = 10, /* this worker was dropped: a new session joins again */
  SYNCLINE_OUT_OF_RANGE = 11,
  SYNCLINE_UNIMPLEMENTED = 12,
  SYNCLINE_INTERNAL = 13,
  SYNCLINE_UNAVAILABLE = 14, /* servers or coordinator lost: a new session may succeed */
  SYNCLINE_DATA_LOSS = 15,
  SYNCLINE_UNAUTHENTICATED = 16
} syncline_code;

/* What the last failing call of this thread says; "" when none failed. Valid until this thread's next call. */
SYNCLINE_API const char* syncline_last_error(void);
/* The exit code by which launchers know what to do with the process that ends for that error: 138 start again, 7 the
 * job was refused, do not (docs/errors.md has all); 0 when no call of this thread failed. */
SYNCLINE_API int syncline_last_error_exit_code(void);

/* The rank of a group that the last error of this thread is about: who died, hangs, left, or calls something else; -1
 * when it is about none. */
SYNCLINE_API int syncline_last_error_rank(void);

/* ---- options ------------------------------------------------------------------------------------------------- */
typedef struct syncline_options syncline_options;

/* The defaults, without looking at the environment. */
SYNCLINE_API syncline_code syncline_options_new(syncline_options** out);
/* From the environment that `syncline run`, torchrun, Slurm, Kubernetes and Open MPI set (worker/client/README.md). */
SYNCLINE_API syncline_code syncline_options_from_env(syncline_options** out);
SYNCLINE_API void syncline_options_free(syncline_options* options);

/* Sets one option from a string. Keys: coordinator, job, run_id, rejoin (1: this rank was in the run before, and fails, instead of
 * beginning another one, where the others have finished it), rank, world_size, ranks (of a job whose
 * workers are hosts: processes on all of them; 0: each worker is one), optimizer ("adamw:lr=0.001"), state, schedule ("cosine:..."), gradient ("clip_global_norm=1"), loss_scaling ("torch:..."), nonfinite_steps
 * (apply|skip), accumulate_steps, accumulate_on (server|worker), aggregation (rank_order|arrival), mode ("bsp",
 * "bsp:quorum=3,grace_ms=20", "ssp:staleness=3" or "ssp:3", "asp:age_power=1"), push, publish, preset (diloco,
 * streaming-diloco, sparseloco, post-local-sgd: sets optimizer, push and publish, docs/local_sgd.md), codec_threads
 * ("auto", 0 to 64), checkpoint_every ("500 steps", "10 min") and the other settings that all workers of a job say alike
 * (docs/settings.md), failure_timeout ("10s"), start_timeout ("10m"), tls_cert, tls_key, tls_ca, identities.
 * INVALID_ARGUMENT names the key or the value and the nearest one that exists. What optimizers, schedules and transforms
 * there are the coordinator knows: it refuses others at syncline_start. */
SYNCLINE_API syncline_code syncline_options_set(syncline_options* options,
                                                const char* key, const char* value);
/* What an option is now, as syncline_options_set would take it; NULL for an unknown key. Valid until the next call
 * with these options. */
SYNCLINE_API const char* syncline_options_get(syncline_options* options, const char* key);

typedef enum syncline_log_level SYNCLINE_INT {
  SYNCLINE_LOG_DEBUG = 0,
  SYNCLINE_LOG_INFO = 1,
  SYNCLINE_LOG_WARNING = 2,
  SYNCLINE_LOG_ERROR = 3
} syncline_log_level;
/* Takes a line of the session's log. `message` is valid during the call, which may come from any thread, one at a
 * time, until the session is freed. It must not call back into the session. Until this is called, lines from INFO on go to
 * standard error, among them what the program waits for; with NULL nothing is logged. */
typedef void (*syncline_log_function)(void* context, syncline_log_level level,
                                      const char* message);
SYNCLINE_API void syncline_options_set_log(syncline_options* options,
                                           syncline_log_function log, void* context);

/* ---- session ------------------------------------------------------------------------------------------------- */
typedef struct syncline_session syncline_session;

typedef enum syncline_dtype SYNCLINE_INT {
  SYNCLINE_FLOAT32 = 0,
  SYNCLINE_BFLOAT16 = 1,
  SYNCLINE_FLOAT16 = 2,
  /* Of collective operations only: */
  SYNCLINE_FLOAT64 = 3,
  SYNCLINE_INT64 = 4,
  SYNCLINE_INT32 = 5,
  SYNCLINE_INT8 = 6,
  SYNCLINE_UINT8 = 7
} syncline_dtype;

/* Timeouts are milliseconds. 0: do not wait, say DEADLINE_EXCEEDED when it is not so yet. */
#define SYNCLINE_FOREVER (-1)

/* Checks the options; connects nothing. The options may be freed afterwards. A session belongs to the process that
 * made it: in a child made by fork its calls fail, and syncline_session_free does nothing. */
SYNCLINE_API syncline_code syncline_session_create(const syncline_options* options,
                                                   syncline_session** out);
/* Without syncline_leave the coordinator takes it for a crash. NULL is fine. No other call may be under way. */
SYNCLINE_API void syncline_session_free(syncline_session* session);

typedef struct syncline_tensor {
  size_t struct_size; /* sizeof(syncline_tensor) */
  const char* name;
  uint32_t dimensions; /* 0: a scalar */
  const uint64_t* shape;
  syncline_dtype dtype; /* of data */
  /* Initial values, and from syncline_start on where new weights land: prod(shape) elements, contiguous. Stay valid until
   * the session is freed. */
  void* data;
  double learning_rate_scale; /* 0 means 1 */
  const char*
      options; /* of the optimizer, in place of the job's: "weight_decay=0,lr=0.01"; NULL: the job's */
  const char* state; /* "f32", "bf16", "int8"; NULL: the job's */
  int32_t frozen;    /* not 0: received once, never pushed */
  /* Where data lies. 0: in host memory; n: in memory of CUDA device n - 1, aligned to 16 bytes, see syncline_device_check.
   * (64 bits: the struct of older callers ends with padding, in which a field of 32 would lie.) */
  uint64_t device;
} syncline_tensor;

/* Whether tensors may lie in memory of a device, named as in syncline_tensor. OK: the session's threads encode gradients
 * there and decode weights there, on streams of their own, and only what travels crosses the bus. UNAVAILABLE: there is
 * no CUDA module beside the library, no driver or no device; INVALID_ARGUMENT: there are fewer devices. Initialises the
 * CUDA driver: children made by fork cannot use CUDA. */
SYNCLINE_API syncline_code syncline_device_check(uint64_t device);

/* Before start, by every worker the same tensors in the same order, front layers first. */
SYNCLINE_API syncline_code syncline_declare(syncline_session* session,
                                            const syncline_tensor* tensor, uint32_t* id);

/* Joins the job and blocks until all declared weights hold the job's values. After any error, DEADLINE_EXCEEDED and
 * CANCELLED among them, the session is over: free it. */
SYNCLINE_API syncline_code syncline_start(syncline_session* session, int64_t timeout_ms);

/* Hands over the gradient of one step: the mean over `samples` samples. Returns at once. `gradient` (prod(shape)
 * elements of `dtype`, contiguous, on the host) stays valid and unchanged until the tensor was waited for. */
SYNCLINE_API syncline_code syncline_push_pull(syncline_session* session, uint32_t tensor,
                                              const void* gradient, syncline_dtype dtype,
                                              uint32_t samples);
/* The same of a gradient in memory of a device, named as in syncline_tensor: the tensor's own, with 16 bytes' alignment.
 * The device is through with writing it, and with all use of the tensor's weights, when this is called. After the wait
 * that follows, the new weights are there for any of its streams. 0 is syncline_push_pull. INVALID_ARGUMENT for another
 * device than the weights'. */
SYNCLINE_API syncline_code syncline_push_pull_from(syncline_session* session,
                                                   uint32_t tensor, const void* gradient,
                                                   syncline_dtype dtype, uint64_t device,
                                                   uint32_t samples);
/* Memory for one gradient, which servers of this host read where it lies instead of a copy: where mode is bsp without a
 * quorum and the push codec is what it holds ("fp32" of FLOAT32, "bf16" of BFLOAT16); otherwise it is like any other. Push
 * from its beginning. As any gradient it stays unchanged from push_pull until the tensor was waited for, or the session is
 * over. Before or after start; the memory may outlive the session. Aligned to 4096 bytes, first contents unspecified;
 * children made by fork do not have it. RESOURCE_EXHAUSTED when the system has no more shared memory. */
typedef struct syncline_memory syncline_memory;
SYNCLINE_API syncline_code syncline_memory_new(syncline_session* session,
                                               uint64_t elements, syncline_dtype dtype,
                                               syncline_memory** out);
SYNCLINE_API void* syncline_memory_data(const syncline_memory* memory);
SYNCLINE_API void syncline_memory_free(syncline_memory* memory); /* NULL is fine */
/* What the tensor's learning rate is multiplied with from its next push_pull on, 0 to 1e6: for schedules that the program
 * computes, the same on all workers; where they differ, the one that joined first decides. Not while it is under way. */
SYNCLINE_API syncline_code syncline_scale_learning_rate(syncline_session* session,
                                                        uint32_t tensor, double factor);
/* Instead of push_pull: no gradient of these tensors in this step. All of them or, after an error, none. */
SYNCLINE_API syncline_code syncline_skip(syncline_session* session,
                                         const uint32_t* tensors, size_t count);
/* Blocks until the tensor's weights include every member's contribution to the step pushed last. After
 * DEADLINE_EXCEEDED or CANCELLED its gradient and weights are still in use, and it may be waited for again. */
SYNCLINE_API syncline_code syncline_wait(syncline_session* session, uint32_t tensor,
                                         int64_t timeout_ms);
SYNCLINE_API syncline_code syncline_wait_all(syncline_session* session,
                                             int64_t timeout_ms);
/* 1 when syncline_wait would return at once, also when the session has failed; 0 when not; -1 for an unknown tensor. */
SYNCLINE_API int syncline_is_ready(const syncline_session* session, uint32_t tensor);
/* Ends what waits now, in any thread, with CANCELLED, and whatever would have to wait until syncline_uncancel.
 * syncline_leave and syncline_session_free wait for bounded times and are not cancelled. Safe in any thread, not in a
 * signal handler. */
SYNCLINE_API void syncline_cancel(syncline_session* session);
SYNCLINE_API void syncline_uncancel(syncline_session* session);

/* The averaged weights (EMA, SWA) of a tensor, as float32: prod(shape) elements. */
SYNCLINE_API syncline_code syncline_pull_average(syncline_session* session,
                                                 uint32_t tensor, float* out,
                                                 int64_t timeout_ms);

/* Array number `array` of the optimizer's state of a tensor (of adam 0 is the mean, 1 the variance: the order of
 * server/optimizer), as float32, prod(shape) elements, and to *updates, unless NULL, of how many updates it is. It
 * is that after all steps that this worker has pushed, for which it waits in mode ssp; the weights are theirs then.
 * FAILED_PRECONDITION in mode asp, when the tensor is pushed meanwhile, and when there is no such array. */
SYNCLINE_API syncline_code syncline_pull_state(syncline_session* session, uint32_t tensor,
                                               uint32_t array, float* out,
                                               uint64_t* updates, int64_t timeout_ms);
/* Before start: what the tensor's optimizer begins with where the job has nothing yet, all of its arrays, as they are
 * after so many updates. They stay valid until syncline_start has returned. Every worker says the same. */
SYNCLINE_API syncline_code syncline_set_state(syncline_session* session, uint32_t tensor,
                                              uint64_t updates,
                                              const float* const* arrays, size_t count);

/* What becomes of a push that a quorum leaves out (syncline_stats.late_steps). 1: the tensor's push codec keeps it, and it
 * goes with the next push (error feedback). 0: it is gone, unless the caller pushes it again. -1 for an unknown tensor. Known
 * once the session has started. */
SYNCLINE_API int syncline_keeps_late(const syncline_session* session, uint32_t tensor);

SYNCLINE_API uint64_t syncline_step(const syncline_session* session);
SYNCLINE_API float syncline_loss_scale(const syncline_session* session);
SYNCLINE_API uint32_t syncline_rank(const syncline_session* session);
SYNCLINE_API uint32_t syncline_world_size(const syncline_session* session);
SYNCLINE_API void syncline_report_loss(syncline_session* session, uint64_t step,
                                       double loss, uint32_t samples);

typedef struct syncline_stats {
  size_t struct_size;
  uint64_t bytes_pushed;
  uint64_t bytes_pulled;
  uint64_t resent_blocks;
  uint64_t epoch;
  uint32_t members;
  /* Where this worker's time went since it started: seconds of the phases compute, encode,
   * push, others, publish and decode, in this order, and in how many steps. Together they
   * are all of its time; all but compute are time in which the program waited. */
  uint64_t steps;
  double phase_seconds[6];
  /* Steps that a quorum made without this worker: what it pushed for them does not count. */
  uint64_t late_steps;
} syncline_stats;
/* Fills what fits into stats->struct_size. */
SYNCLINE_API syncline_code syncline_get_stats(const syncline_session* session,
                                              syncline_stats* stats);

/* Where the codecs run of tensors that lie in memory of devices, in words: "on the GPU (9 tensors; 2 more by way of the host:
 * no kernel for push int4)". syncline_start logs it, too. "" where none lies there, and before. Valid until this thread's
 * next call of it. */
SYNCLINE_API const char* syncline_device_codecs(const syncline_session* session);

/* What lossy encodings keep of gradients, to and from a file. */
SYNCLINE_API syncline_code syncline_save_residuals(syncline_session* session,
                                                   const char* path);
SYNCLINE_API syncline_code syncline_restore_residuals(syncline_session* session,
                                                      const char* path);

/* Blocks until every member of the epoch is in a barrier. After DEADLINE_EXCEEDED or CANCELLED this member is still in
 * it: the next call waits for the same one. */
SYNCLINE_API syncline_code syncline_barrier(syncline_session* session,
                                            int64_t timeout_ms);
/* A clean goodbye, best after wait_all; it waits for a step that was pushed whole, failure_timeout at most. The session
 * is over. */
SYNCLINE_API syncline_code syncline_leave(syncline_session* session);

/* ---- group --------------------------------------------------------------------------------------------------- */
/* Ranks that call collective operations together, through shared memory on one host and TCP between hosts; no servers
 * and no coordinator. Every member makes the same calls in the same order (sends and receives have an order of their own); FAILED_PRECONDITION says where they
 * differ. A member that dies, hangs or leaves ends every operation on all others with ABORTED, one that does not come
 * with DEADLINE_EXCEEDED; syncline_last_error_rank names it. The group is of no use then: make another one. Any thread
 * may call; comm/collective/group/group.h is the same thing in C++ and says more. */
typedef struct syncline_group syncline_group;

/* A key-value store that all members reach; used by syncline_group_create only, and by the calling thread only. */
typedef struct syncline_store {
  void* context;
  /* 0 on success. */
  int (*set)(void* context, const char* key, const void* value, size_t bytes);
  /* Waits until the key is there; writes at most *bytes of it to value and its size to *bytes. 0 on success. */
  int (*get)(void* context, const char* key, int64_t timeout_ms, void* value,
             size_t* bytes);
} syncline_store;

typedef struct syncline_group_options {
  size_t struct_size; /* sizeof(syncline_group_options) */
  const char* name;   /* never used twice with the same store */
  uint32_t rank;
  uint32_t ranks;
  syncline_store store;
  int64_t failure_timeout_ms; /* a member stopped for so long hangs; 0: 10 s */
  int64_t timeout_ms;         /* of operations that name none; 0: 30 minutes */
  int64_t start_timeout_ms;   /* until all members are there; 0: 5 minutes */
  /* Where members are on several hosts: the IP address by which the others reach this one. NULL or "": that of the
   * default route. */
  const char* address;
  const char* host; /* members that say different names share no memory; usually NULL */
  const char*
      security; /* of connections between hosts: NULL or "tls", with a key from the store; "plain": none */
  /* 1: sums, averages and products of floating point have the same bits whatever algorithm is chosen and however ranks
   * are spread over hosts: in the order of ranks, rounded once. All members say the same. */
  int exact_order;
} syncline_group_options;

/* Blocks until all members are there. UNAVAILABLE when one cannot be reached. */
SYNCLINE_API syncline_code syncline_group_create(const syncline_group_options* options,
                                                 syncline_group** out);
/* What is under way ends with CANCELLED, for the others, too. Handles are freed before. */
SYNCLINE_API void syncline_group_free(syncline_group* group);

typedef enum syncline_collective SYNCLINE_INT {
  SYNCLINE_ALL_REDUCE = 0,     /* output (count): in and out */
  SYNCLINE_REDUCE_SCATTER = 1, /* input (ranks x count) to output (count) */
  SYNCLINE_ALL_GATHER = 2,     /* input (count) to output (ranks x count) */
  SYNCLINE_BROADCAST = 3,      /* output (count): the root's */
  SYNCLINE_REDUCE = 4,         /* input (count) to the root's output (count) */
  SYNCLINE_GATHER = 5,         /* input (count) to the root's output (ranks x count) */
  SYNCLINE_SCATTER = 6,        /* the root's input (ranks x count) to output (count) */
  SYNCLINE_ALL_TO_ALL = 7,     /* input to output, a slice for and from each rank */
  SYNCLINE_BARRIER = 8,
  SYNCLINE_SEND_RECEIVE = 9 /* input of the rank `source` to output of the rank `root` */
} syncline_collective;

typedef enum syncline_reduction SYNCLINE_INT {
  SYNCLINE_SUM = 0,
  SYNCLINE_AVERAGE = 1,
  SYNCLINE_MIN = 2,
  SYNCLINE_MAX = 3,
  SYNCLINE_PRODUCT = 4,
  SYNCLINE_PREMULTIPLIED_SUM = 5, /* each rank's values times its `factor` */
  SYNCLINE_BITWISE_AND = 6,       /* of integers, as the two that follow */
  SYNCLINE_BITWISE_OR = 7,
  SYNCLINE_BITWISE_XOR = 8
} syncline_reduction;

typedef struct syncline_call {
  size_t struct_size; /* sizeof(syncline_call) */
  syncline_collective op;
  syncline_dtype dtype;
  syncline_reduction reduction;
  const void*
      input; /* contiguous, on the host; valid until the operation is done, as output */
  void* output;
  size_t count; /* elements */
  uint32_t root;
  uint32_t source;
  uint32_t tag;
  /* Of ALL_TO_ALL: elements to and from each rank; NULL, both: count each. */
  const size_t* send_counts;
  const size_t* receive_counts;
  const char* algorithm; /* "direct", "ring", ...; NULL: the fastest by the cost model */
  int64_t timeout_ms;    /* 0: the group's */
  double factor;         /* of PREMULTIPLIED_SUM; a whole number for integers */
  /* What the elements are to the program, where dtype does not say it ("complex64" that travels as bytes); NULL: nothing. All
   * ranks give the same, otherwise FAILED_PRECONDITION on all. Up to 23 bytes. */
  const char* label;
} syncline_call;

SYNCLINE_API syncline_code syncline_group_run(syncline_group* group,
                                              const syncline_call* call);

/* An operation that goes on by itself. */
typedef struct syncline_handle syncline_handle;
SYNCLINE_API syncline_code syncline_group_start(syncline_group* group,
                                                const syncline_call* call,
                                                syncline_handle** out);
/* The operation's result. DEADLINE_EXCEEDED may also be this call's timeout: syncline_handle_is_done tells. */
SYNCLINE_API syncline_code syncline_handle_wait(syncline_handle* handle,
                                                int64_t timeout_ms);
SYNCLINE_API int syncline_handle_is_done(const syncline_handle* handle);
/* The operation goes on. NULL is fine. */
SYNCLINE_API void syncline_handle_free(syncline_handle* handle);

/* Waits until what this rank has given has reached the others' hosts, failure_timeout at most; an operation is done
 * before. Needed before a process ends without freeing its group. */
SYNCLINE_API void syncline_group_settle(syncline_group* group);

/* Ends everything under way on all members with CANCELLED, and the group. */
SYNCLINE_API void syncline_group_abort(syncline_group* group);

/* ---- compressed all-reduce ----------------------------------------------------------------------------------- */
/* The mean over a group of one FP32 tensor whose values travel encoded, with error feedback on both ways. What an
 * encoding loses is kept, and goes with the next call: make one for each tensor and keep it. One thread at a time, and
 * no other operations of the group meanwhile. comm/collective/compressed says more. */
typedef struct syncline_compressed syncline_compressed;

/* INVALID_ARGUMENT says what is wrong with a codec, or why it is not for an all-reduce. */
SYNCLINE_API syncline_code syncline_compressed_check_codec(const char* codec);
/* `codec` as push codecs of a job ("onebit", "topk:ratio=0.01", "int8", "fp32"). `seed` is of codecs that round at random.
 * The group is freed later. Other ranks are not asked. */
SYNCLINE_API syncline_code syncline_compressed_create(syncline_group* group,
                                                      const char* codec, size_t count,
                                                      uint64_t seed,
                                                      syncline_compressed** out);
/* Replaces `count` values, on the host, by their mean over the ranks: the same bits on all. FAILED_PRECONDITION: ranks
 * differ in codec, count, seed or number of calls. After any error but INVALID_ARGUMENT neither this nor the group is of
 * use: an error of one rank ends the group for all. */
SYNCLINE_API syncline_code syncline_compressed_mean(syncline_compressed* compressed,
                                                    float* values, size_t count);
/* Bytes that this rank has sent so far. */
SYNCLINE_API uint64_t
syncline_compressed_sent_bytes(const syncline_compressed* compressed);
/* NULL is fine. */
SYNCLINE_API void syncline_compressed_free(syncline_compressed* compressed);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-*) */
