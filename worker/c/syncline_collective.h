/* Groups of ranks that call collective operations: over shared memory and TCP, over
 * NCCL, with compressed values, and gossip. syncline.h includes this header. Its rules
 * on errors, threads, ownership and stability hold here too. */
#pragma once

/* NOLINTBEGIN(modernize-*): this is C */

#include "syncline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- group ---- */
/* Ranks that call collective operations together, through shared memory on one host
 * and TCP between hosts, without servers or a coordinator. All members must make the
 * same calls in the same order; FAILED_PRECONDITION says where they differ. Sends and
 * receives between two ranks have an order of their own.
 *
 * If a member dies, hangs or leaves, all operations fail on all others with ABORTED;
 * if it does not come, with DEADLINE_EXCEEDED. syncline_last_error_rank names it. The
 * group is then unusable, and another one must be made. Any thread may call.
 * comm/collective/group/group.h is the same interface in C++, with more detail. */
typedef struct syncline_group syncline_group;

/* A key-value store that all members reach. Only syncline_group_create uses it, in the
 * calling thread. */
typedef struct syncline_store {
  void* context;
  /* Returns 0 on success. */
  int (*set)(void* context, const char* key, const void* value, size_t bytes);
  /* Waits until the key exists. Writes at most *bytes of its value to `value`, and its
   * size to *bytes. Returns 0 on success. */
  int (*get)(void* context, const char* key, int64_t timeout_ms, void* value,
             size_t* bytes);
} syncline_store;

typedef struct syncline_group_options {
  size_t struct_size; /* sizeof(syncline_group_options) */
  const char* name;   /* must be unique in the store, for all time */
  uint32_t rank;
  uint32_t ranks;
  syncline_store store;
  /* A member that does not run for this long counts as hung; 0: 10 s. */
  int64_t failure_timeout_ms;
  int64_t timeout_ms;       /* for calls without a timeout; 0: 30 minutes */
  int64_t start_timeout_ms; /* until all members have come; 0: 5 minutes */
  /* With several hosts: the IP address at which other hosts reach this one. NULL or
   * "": the address of the default route. */
  const char* address;
  /* Members with different names do not share memory. Usually NULL. */
  const char* host;
  /* For connections between hosts. NULL or "tls": with a key from the store. "plain":
   * not encrypted. */
  const char* security;
  /* 1: floating-point sums, averages and products combine the ranks' values in the order
   * of ranks and are rounded once. The bits are then the same for every algorithm and
   * distribution over hosts. Must be equal on all members. */
  int exact_order;
  /* The costs by which the group chooses algorithms. NULL or "": built in. "probe":
   * measured when the group forms. Otherwise a file: those in it; what it lacks is
   * measured and added. Rank 0's counts for all members. */
  const char* costs;
} syncline_group_options;

/* Blocks until all members are connected. Fails with UNAVAILABLE if one cannot be
 * reached. */
SYNCLINE_API syncline_code syncline_group_create(const syncline_group_options* options,
                                                 syncline_group** out);
/* Returns text for the log: the costs, and which algorithm an all-reduce of 8 B, 64 KiB
 * and 64 MiB uses, and why. Valid until the group is freed; "" for NULL. */
SYNCLINE_API const char* syncline_group_describe_costs(const syncline_group* group);
/* Fails operations in progress with CANCELLED, also on the other members. REQUIRES:
 * all handles were freed. */
SYNCLINE_API void syncline_group_free(syncline_group* group);

typedef enum syncline_collective SYNCLINE_INT {
  SYNCLINE_ALL_REDUCE = 0,     /* output (count), in place */
  SYNCLINE_REDUCE_SCATTER = 1, /* input (ranks x count) to output (count) */
  SYNCLINE_ALL_GATHER = 2,     /* input (count) to output (ranks x count) */
  SYNCLINE_BROADCAST = 3,      /* output (count), from the root */
  SYNCLINE_REDUCE = 4,         /* input (count) to the root's output (count) */
  SYNCLINE_GATHER = 5,         /* input (count) to the root's output (ranks x count) */
  SYNCLINE_SCATTER = 6,        /* the root's input (ranks x count) to output (count) */
  /* A slice of the input to, and of the output from, each rank. */
  SYNCLINE_ALL_TO_ALL = 7,
  SYNCLINE_BARRIER = 8,
  SYNCLINE_SEND_RECEIVE = 9 /* input of rank `source` to output of rank `root` */
} syncline_collective;

typedef enum syncline_reduction SYNCLINE_INT {
  SYNCLINE_SUM = 0,
  SYNCLINE_AVERAGE = 1,
  SYNCLINE_MIN = 2,
  SYNCLINE_MAX = 3,
  SYNCLINE_PRODUCT = 4,
  SYNCLINE_PREMULTIPLIED_SUM = 5, /* each rank's values are multiplied by its `factor` */
  SYNCLINE_BITWISE_AND = 6,       /* integers only, as the two below */
  SYNCLINE_BITWISE_OR = 7,
  SYNCLINE_BITWISE_XOR = 8
} syncline_reduction;

typedef struct syncline_call {
  size_t struct_size; /* sizeof(syncline_call) */
  syncline_collective op;
  syncline_dtype dtype;
  syncline_reduction reduction;
  /* Contiguous, in host memory. Input and output must stay valid until the operation is
   * done. */
  const void* input;
  void* output;
  size_t count; /* elements */
  uint32_t root;
  uint32_t source;
  uint32_t tag;
  /* For ALL_TO_ALL: elements to and from each rank. Both NULL: `count` elements each. */
  const size_t* send_counts;
  const size_t* receive_counts;
  const char* algorithm; /* "direct", "ring", ...; NULL: chosen by the cost model */
  int64_t timeout_ms;    /* 0: the group's */
  double factor;         /* of PREMULTIPLIED_SUM; whole for integers */
  /* What the elements mean to the program if dtype does not say it, for example
   * "complex64" values that travel as bytes. Up to 23 bytes; NULL: nothing. If ranks
   * give different labels, the call fails with FAILED_PRECONDITION on all. */
  const char* label;
} syncline_call;

/* Runs an operation and waits until it is done. */
SYNCLINE_API syncline_code syncline_group_run(syncline_group* group,
                                              const syncline_call* call);

/* An operation in progress, which proceeds by itself. */
typedef struct syncline_handle syncline_handle;
/* Starts an operation without blocking. */
SYNCLINE_API syncline_code syncline_group_start(syncline_group* group,
                                                const syncline_call* call,
                                                syncline_handle** out);
/* Waits for the operation and returns its result. DEADLINE_EXCEEDED may also mean this
 * call's own timeout; syncline_handle_is_done tells which. */
SYNCLINE_API syncline_code syncline_handle_wait(syncline_handle* handle,
                                                int64_t timeout_ms);
SYNCLINE_API int syncline_handle_is_done(const syncline_handle* handle);
/* Frees the handle; NULL is allowed. The operation continues. */
SYNCLINE_API void syncline_handle_free(syncline_handle* handle);

/* Waits until the other hosts have all data that this rank has sent, at most
 * failure_timeout. An operation may be done earlier. Call it before the process ends
 * without freeing its group. */
SYNCLINE_API void syncline_group_settle(syncline_group* group);

/* Fails all operations in progress with CANCELLED, on all members. The group is then
 * unusable. */
SYNCLINE_API void syncline_group_abort(syncline_group* group);

/* ---- group over NCCL ---- */
/* The same calls over NCCL, with one GPU per rank and data in its memory. A group
 * beside it detects which ranks are alive and what each has called. So if a rank dies,
 * hangs, leaves or makes another call, all operations fail on all others as in a
 * group, with the same codes. comm/collective/nccl/nccl_group.h is the same interface
 * in C++, with more detail. */
typedef struct syncline_nccl_group syncline_nccl_group;

typedef struct syncline_nccl_options {
  size_t struct_size; /* sizeof(syncline_nccl_options) */
  /* As for the other group, except that the name must be a new one. */
  const syncline_group_options* group;
  uint64_t device;     /* number of a CUDA device, plus 1 */
  const char* why_not; /* not NULL: this rank refuses, and all ranks get this reason */
} syncline_nccl_options;

/* Makes the NCCL group. It is one of the group's collective operations: all ranks call
 * it, in the same order among their calls. If it is impossible (no NCCL, no GPU, two
 * ranks on one GPU, ...), it fails with UNIMPLEMENTED and the reason on all ranks, and
 * the group continues. */
SYNCLINE_API syncline_code syncline_nccl_create(syncline_group* group,
                                                const syncline_nccl_options* options,
                                                syncline_nccl_group** out);
/* Leaves if that has not been done, and frees the group. REQUIRES: all handles were
 * freed. */
SYNCLINE_API void syncline_nccl_free(syncline_nccl_group* nccl);
/* Starts an operation, which begins when all earlier work of `stream` is done.
 * `stream` is a CUstream or cudaStream_t of the device. Input and output are in the
 * device's memory. When the operation is done, all streams see the results. Fails with
 * UNIMPLEMENTED, without starting anything, if NCCL does not have the reduction. */
SYNCLINE_API syncline_code syncline_nccl_start(syncline_nccl_group* nccl,
                                               const syncline_call* call, void* stream,
                                               syncline_handle** out);
/* Waits up to an eighth of failure_timeout for operations in progress, and leaves the
 * group in order. Operations that are still in progress then fail with CANCELLED, also
 * on the others. Call it before the process ends without freeing the group. */
SYNCLINE_API void syncline_nccl_leave(syncline_nccl_group* nccl);
/* Fails all operations in progress with CANCELLED, on all members. The NCCL group is
 * then unusable. */
SYNCLINE_API void syncline_nccl_abort(syncline_nccl_group* nccl);

/* ---- compressed all-reduce ---- */
/* The mean over a group of one FP32 tensor whose values travel encoded, with error
 * feedback in both directions. What an encoding loses is kept and added to the next
 * call, so make one for each tensor and keep it. One thread at a time; no other
 * operations of the group may run meanwhile. See comm/collective/compressed. */
typedef struct syncline_compressed syncline_compressed;

/* Fails with INVALID_ARGUMENT, which says what is wrong with the codec, or why it does
 * not suit an all-reduce. */
SYNCLINE_API syncline_code syncline_compressed_check_codec(const char* codec);
/* `codec`: as for pushes of a job ("onebit", "topk:ratio=0.01", "int8", "fp32").
 * `seed`: for codecs that round at random. It keeps the group alive, so the group's
 * handle may be freed first. Does not communicate with other ranks. */
SYNCLINE_API syncline_code syncline_compressed_create(syncline_group* group,
                                                      const char* codec, size_t count,
                                                      uint64_t seed,
                                                      syncline_compressed** out);
/* Replaces `count` values in host memory by their mean over the ranks, with the same
 * bits on all. Fails with FAILED_PRECONDITION if ranks differ in codec, count, seed or
 * number of calls. After any error except INVALID_ARGUMENT, this object and the group
 * are unusable, because an error of one rank ends the group for all. */
SYNCLINE_API syncline_code syncline_compressed_mean(syncline_compressed* compressed,
                                                    float* values, size_t count);
/* Returns the bytes that this rank has sent so far. */
SYNCLINE_API uint64_t
syncline_compressed_sent_bytes(const syncline_compressed* compressed);
/* NULL is allowed. */
SYNCLINE_API void syncline_compressed_free(syncline_compressed* compressed);

/* ---- gossip ---- */
/* Pairwise averaging without servers. In each round two ranks of a group bring their
 * values closer to each other, and the sum over all ranks stays the same. See
 * comm/collective/gossip. */
typedef struct syncline_gossip syncline_gossip;

typedef struct syncline_gossip_options {
  size_t struct_size; /* sizeof(syncline_gossip_options) */
  const char* graph;  /* "ring", "exponential" or "random" */
  const char* codec;  /* as for pushes of a job: "fp32", "bf16", "int8", ... */
  /* How far partners move towards each other: 0 < gamma <= 1. 0: chosen by the codec, at
   * most 0.5. */
  double gamma;
  uint64_t seed; /* of the random graph, and of codecs that round at random */
  size_t count;
  /* For codecs that are not dense: `count` values that are equal on all ranks. Copied. */
  const float* base;
} syncline_gossip_options;

/* Fails with INVALID_ARGUMENT, which says what is wrong with graph, codec or gamma.
 * Writes the effective gamma to *gamma, unless that is NULL. */
SYNCLINE_API syncline_code syncline_gossip_check(const syncline_gossip_options* options,
                                                 double* gamma);
/* It keeps the group alive, so the group's handle may be freed first. Does not
 * communicate with other ranks. */
SYNCLINE_API syncline_code syncline_gossip_create(syncline_group* group,
                                                  const syncline_gossip_options* options,
                                                  syncline_gossip** out);
/* Exchanges values with the partner of a round. Writes to `delta` what to add to
 * `values`, and to *partner the rank that adds the negative. *partner is -1, and delta
 * 0, if this rank is idle in the round. All ranks must call it for the same rounds.
 * Fails with FAILED_PRECONDITION if the partner's settings or round differ. After any
 * error except INVALID_ARGUMENT, this object and the group are unusable. */
SYNCLINE_API syncline_code syncline_gossip_exchange(syncline_gossip* gossip,
                                                    uint64_t round, const float* values,
                                                    float* delta, size_t count,
                                                    int* partner);
/* Computes sqrt(mean over ranks of |values - mean|^2), within 4 %. The result is the
 * same on all ranks, which must all call it at the same point. It costs an all-reduce
 * of 32 KiB. */
SYNCLINE_API syncline_code syncline_gossip_distance(syncline_gossip* gossip,
                                                    const float* values, size_t count,
                                                    double* distance);
/* Return the bytes that this rank has sent so far, and those that it keeps for its
 * partners. */
SYNCLINE_API uint64_t syncline_gossip_sent_bytes(const syncline_gossip* gossip);
SYNCLINE_API uint64_t syncline_gossip_kept_bytes(const syncline_gossip* gossip);
/* NULL is allowed. */
SYNCLINE_API void syncline_gossip_free(syncline_gossip* gossip);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-*) */
