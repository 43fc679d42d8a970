// NCCL, found at run time. Nothing links it, and nccl.h need not be installed: the part
// of its interface that is used is declared here, as it is in NCCL 2.19 and has stayed
// since.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const NcclLibrary nccl, NcclLibrary::Open("libnccl.so.2"));
//   nccl.VersionText();  // "2.27.3"
//
// Thread-safe; for the functions NCCL's own rules apply. The library stays open as long
// as the process.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace syncline::collective {

// Values of ncclResult_t.
inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;

// The address where one rank waits for the others to join its communicator. It is used
// once.
struct NcclUniqueId {
  std::array<char, 128> bytes = {};
};

// ncclConfig_t, as known to the version that it names. NCCL uses its defaults for fields
// beyond `size`. traffic_class was added in 2.25, in what was padding before.
struct NcclConfig {
  static constexpr int kUndefined = INT_MIN;

  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21900;
  int blocking = 0;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
};
static_assert(sizeof(NcclConfig) == 48 && offsetof(NcclConfig, net_name) == 32);

struct NcclLibrary {
  // Opens `library`: a path, or a name for the dynamic linker to find. Fails with
  // NotFound if it does not exist, and with FailedPrecondition if it is not NCCL or older
  // than 2.19.
  static absl::StatusOr<NcclLibrary> Open(const std::string& library);
  // Returns $SYNCLINE_NCCL_LIBRARY if it is set, otherwise libnccl.so.2. In a process
  // that has loaded torch, the dynamic linker then finds torch's own.
  static std::string Default();

  std::string VersionText() const;

  int version = 0;  // in NCCL's encoding: 22703 is 2.27.3

  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(NcclUniqueId* id) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  const char* (*get_last_error)(void* comm) = nullptr;
  int (*comm_init)(void** comm, int ranks, NcclUniqueId id, int rank,
                   NcclConfig* config) = nullptr;
  int (*comm_get_async_error)(void* comm, int* result) = nullptr;
  int (*comm_finalize)(void* comm) = nullptr;
  int (*comm_destroy)(void* comm) = nullptr;
  int (*comm_abort)(void* comm) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_reduce)(const void* from, void* to, size_t count, int type, int reduction,
                    void* comm, void* stream) = nullptr;
  int (*reduce)(const void* from, void* to, size_t count, int type, int reduction,
                int root, void* comm, void* stream) = nullptr;
  int (*reduce_scatter)(const void* from, void* to, size_t to_count, int type,
                        int reduction, void* comm, void* stream) = nullptr;
  int (*all_gather)(const void* from, void* to, size_t from_count, int type, void* comm,
                    void* stream) = nullptr;
  int (*broadcast)(const void* from, void* to, size_t count, int type, int root,
                   void* comm, void* stream) = nullptr;
  int (*send)(const void* from, size_t count, int type, int peer, void* comm,
              void* stream) = nullptr;
  int (*receive)(void* to, size_t count, int type, int peer, void* comm,
                 void* stream) = nullptr;
  // `residence` 1: the factor is read before this function returns.
  int (*create_premultiplied_sum)(int* reduction, void* factor, int type, int residence,
                                  void* comm) = nullptr;
  int (*destroy_reduction)(int reduction, void* comm) = nullptr;
};

}  // namespace syncline::collective
