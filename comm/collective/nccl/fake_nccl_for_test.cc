// See fake_gpu_for_test.h.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/base/dtype.h"
#include "comm/collective/nccl/fake_gpu_for_test.h"
#include "comm/collective/nccl/nccl_library.h"

namespace syncline::fake_gpu {

// The types of the functions are those by which they are called.
using collective::NcclConfig;
using collective::NcclUniqueId;

namespace {

constexpr int kMaxRanks = 8;
constexpr size_t kSlot = size_t{1} << 16;

// ---- communicators -------------------------------------------------------------------

struct Counts {
  std::atomic<uint64_t> posted;
  std::atomic<uint64_t> taken;
};

struct Hall {  // in shared memory, zeros at first
  std::atomic<int> joined;
  std::atomic<int> device[kMaxRanks];
  Counts ranks[kMaxRanks];
  Counts mail[kMaxRanks][kMaxRanks];  // from, to
  std::byte slots[kMaxRanks][kSlot];
  std::byte mail_slots[kMaxRanks][kMaxRanks][kSlot];
};

struct FakeComm {
  ~FakeComm() { munmap(hall, sizeof(Hall)); }

  Hall* hall = nullptr;
  std::string path;
  int rank = 0;
  int ranks = 1;
  std::atomic<int> state = 7;
  std::atomic<bool> is_aborted = false;
  uint64_t rounds = 0;  // collective operations of the stream's thread
  int launched = 0;
  std::string fate;
  int fate_at = 0;
  std::vector<double> factors;  // factors of the reductions that were created
  std::vector<std::thread> helpers;

  // Returns false after an abort.
  bool Await(const std::function<bool()>& condition) const {
    while (!condition()) {
      if (is_aborted) return false;
      Rest();
    }
    return true;
  }
};
using Comm = std::shared_ptr<FakeComm>;

Comm& CommOf(void* comm) { return *static_cast<Comm*>(comm); }

void Join(const Comm& comm, int device) {
  Hall& hall = *comm->hall;
  hall.device[comm->rank] = device + 1;
  ++hall.joined;
  if (!comm->Await([&] { return hall.joined >= comm->ranks; })) return;
  if (comm->rank == 0) unlink(comm->path.c_str());
  std::set<int> devices;
  for (int rank = 0; rank < comm->ranks; ++rank) devices.insert(hall.device[rank]);
  const bool is_wrong =
      comm->fate == "init" || static_cast<int>(devices.size()) < comm->ranks;
  comm->state = is_wrong ? 5 : 0;
}

using Slots = std::vector<const std::byte*>;  // by rank

struct Share {
  const void* from = nullptr;  // null: nothing to give
  size_t bytes = 0;
  std::function<void(size_t first, size_t bytes, const Slots& slots)> take;
};

// All ranks write one slot and then read what they need; this repeats until the end.
void RunCollective(FakeComm& comm, const Share& share) {
  Hall& hall = *comm.hall;
  const auto all = [&](const std::function<bool(const Counts&)>& holds) {
    return comm.Await(
        [&] { return std::all_of(hall.ranks, hall.ranks + comm.ranks, holds); });
  };
  Slots slots;
  for (int rank = 0; rank < comm.ranks; ++rank) slots.push_back(hall.slots[rank]);
  for (size_t first = 0; first < share.bytes; first += kSlot) {
    const size_t bytes = std::min(kSlot, share.bytes - first);
    const uint64_t round = comm.rounds++;
    if (!all([&](const Counts& one) { return one.taken >= round; })) return;
    if (share.from != nullptr) {
      std::memcpy(hall.slots[comm.rank],
                  static_cast<const std::byte*>(share.from) + first, bytes);
    }
    hall.ranks[comm.rank].posted = round + 1;
    if (!all([&](const Counts& one) { return one.posted > round; })) return;
    share.take(first, bytes, slots);
    hall.ranks[comm.rank].taken = round + 1;
  }
}

// ---- arithmetic ----------------------------------------------------------------------

constexpr std::array<size_t, 10> kBytes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

bool IsFloat(int type) { return type >= 6; }

double FloatAt(int type, const std::byte* at) {
  uint16_t half = 0;
  float single = 0;
  double whole = 0;
  if (type == 7) return std::memcpy(&single, at, 4), single;
  if (type == 8) return std::memcpy(&whole, at, 8), whole;
  std::memcpy(&half, at, 2);
  return type == 6 ? FloatFromF16(half) : FloatFromBf16(half);
}

void PutFloat(int type, double value, std::byte* at) {
  const auto single = static_cast<float>(value);
  if (type == 7) std::memcpy(at, &single, 4);
  if (type == 8) std::memcpy(at, &value, 8);
  if (type == 7 || type == 8) return;
  const uint16_t half = type == 6 ? F16FromFloat(single) : Bf16FromFloat(single);
  std::memcpy(at, &half, 2);
}

int64_t IntegerAt(int type, const std::byte* at) {
  int64_t value = 0;
  std::memcpy(&value, at, kBytes[static_cast<size_t>(type)]);
  if (type == 0) return static_cast<int8_t>(value);
  if (type == 2) return static_cast<int32_t>(value);
  return value;
}

template <typename T>
T Combined(int reduction, T a, T b) {
  if (reduction == 1) return a * b;
  if (reduction == 2) return std::max(a, b);
  if (reduction == 3) return std::min(a, b);
  return a + b;
}

// Reduces one element of all ranks. Reductions from 5 on are premultiplied sums, whose
// values each rank has multiplied before.
void ReduceOne(int type, int reduction, const Slots& slots, size_t at, std::byte* out) {
  const auto ranks = static_cast<int64_t>(slots.size());
  if (IsFloat(type)) {
    double value = FloatAt(type, slots[0] + at);
    for (size_t rank = 1; rank < slots.size(); ++rank) {
      value = Combined(reduction, value, FloatAt(type, slots[rank] + at));
    }
    PutFloat(type, reduction == 4 ? value / static_cast<double>(ranks) : value, out);
    return;
  }
  int64_t value = IntegerAt(type, slots[0] + at);
  for (size_t rank = 1; rank < slots.size(); ++rank) {
    value = Combined(reduction, value, IntegerAt(type, slots[rank] + at));
  }
  if (reduction == 4) value /= ranks;
  std::memcpy(out, &value, kBytes[static_cast<size_t>(type)]);
}

std::vector<std::byte> Multiplied(int type, double factor, const void* from,
                                  size_t count) {
  const size_t size = kBytes[static_cast<size_t>(type)];
  const auto* const first = static_cast<const std::byte*>(from);
  std::vector<std::byte> out(first, first + count * size);
  for (size_t at = 0; at < out.size(); at += size) {
    if (IsFloat(type)) {
      PutFloat(type, FloatAt(type, &out[at]) * factor, &out[at]);
    } else {
      const int64_t value = IntegerAt(type, &out[at]) * static_cast<int64_t>(factor);
      std::memcpy(&out[at], &value, size);
    }
  }
  return out;
}

// ---- launches ------------------------------------------------------------------------

struct Transfer {
  bool is_send = false;
  std::byte* at = nullptr;
  size_t bytes = 0;
  int peer = 0;
  size_t done = 0;
};

bool MoveOne(FakeComm& comm, Transfer& one) {
  const int from = one.is_send ? comm.rank : one.peer;
  const int to = one.is_send ? one.peer : comm.rank;
  Counts& counts = comm.hall->mail[from][to];
  std::byte* const slot = comm.hall->mail_slots[from][to];
  const size_t bytes = std::min(kSlot, one.bytes - one.done);
  const bool is_full = counts.posted > counts.taken;
  if (is_full == one.is_send) return false;
  if (one.is_send) {
    std::memcpy(slot, one.at + one.done, bytes);
    ++counts.posted;
  } else {
    std::memcpy(one.at + one.done, slot, bytes);
    ++counts.taken;
  }
  one.done += bytes;
  return true;
}

void RunTransfers(FakeComm& comm, std::vector<Transfer> transfers) {
  while (!transfers.empty() && !comm.is_aborted) {
    bool moved = false;
    std::set<std::pair<bool, int>>
        seen;  // transfers between two ranks run one after another
    for (Transfer& one : transfers) {
      if (seen.emplace(one.is_send, one.peer).second) moved |= MoveOne(comm, one);
    }
    std::erase_if(transfers, [](const Transfer& one) { return one.done == one.bytes; });
    if (!moved) Rest();
  }
}

// The first operation is launched late, because NCCL connects only then.
int Launch(const Comm& comm, void* stream, const std::function<void(FakeComm&)>& body) {
  if (comm->state != 0) return comm->state == 7 ? 4 : comm->state.load();
  const int number = ++comm->launched;
  const auto task = [comm, body, number] {
    if (number != comm->fate_at || comm->fate.empty()) return body(*comm);
    if (comm->fate == "slow") return body(*comm), void(usleep(300'000));
    if (comm->fate == "error") comm->state = 3;
    if (comm->fate == "system") comm->state = 2;
    comm->Await([] { return false; });
  };
  if (number > 1) {
    StreamOf(stream).Put(task);
    return 0;
  }
  comm->state = 7;
  comm->helpers.emplace_back([comm, stream, task] {
    usleep(2000);
    StreamOf(stream).Put(task);
    comm->state = 0;
  });
  return 7;
}

struct FakeGroup {
  int depth = 0;
  void* comm = nullptr;
  void* stream = nullptr;
  std::vector<Transfer> transfers;
};
thread_local FakeGroup open_group;

int CloseGroup() {
  FakeGroup& group = open_group;
  if (--group.depth > 0 || group.comm == nullptr) return 0;
  const auto body = [transfers = group.transfers](FakeComm& comm) {
    RunTransfers(comm, transfers);
  };
  const int result = Launch(CommOf(group.comm), group.stream, body);
  group = {};
  return result;
}

int PutTransfer(const Transfer& one, void* comm, void* stream) {
  ++open_group.depth;
  open_group.comm = comm;
  open_group.stream = stream;
  open_group.transfers.push_back(one);
  return CloseGroup();
}

struct Reduction {
  const void* from = nullptr;
  std::byte* to = nullptr;  // null: this rank receives nothing
  size_t given = 0;         // elements
  size_t first = 0;         // first element that this rank receives
  size_t count = 0;
  int type = 0;
  int op = 0;
};

int Reduce(void* comm, void* stream, const Reduction& what) {
  const Comm& given = CommOf(comm);
  const double factor =
      what.op >= 5 ? given->factors[static_cast<size_t>(what.op) - 5] : 1;
  return Launch(given, stream, [what, factor](FakeComm& own) {
    const size_t size = kBytes[static_cast<size_t>(what.type)];
    std::vector<std::byte> scaled;
    if (what.op >= 5) scaled = Multiplied(what.type, factor, what.from, what.given);
    RunCollective(own, {.from = what.op >= 5 ? scaled.data() : what.from,
                        .bytes = what.given * size,
                        .take = [&](size_t first, size_t bytes, const Slots& slots) {
                          for (size_t at = 0; at < bytes && what.to; at += size) {
                            const size_t index = (first + at) / size;
                            if (index < what.first || index >= what.first + what.count)
                              continue;
                            ReduceOne(what.type, what.op, slots, at,
                                      what.to + (index - what.first) * size);
                          }
                        }});
  });
}

void ReadFate(FakeComm& comm) {
  const char* const said = std::getenv("FAKE_NCCL");
  int rank = 0;
  char what[16] = {};
  int at = 0;
  if (said == nullptr || std::sscanf(said, "%d:%15[a-z]:%d", &rank, what, &at) != 3)
    return;
  if (rank != comm.rank) return;
  comm.fate = what;
  comm.fate_at = at;
}

}  // namespace

// NCCL's own signatures.
// NOLINTBEGIN(readability-function-size)
extern "C" {

int ncclGetVersion(int* version) {
  const char* const given = std::getenv("FAKE_NCCL_VERSION");
  *version = given != nullptr ? std::atoi(given) : 22703;
  return 0;
}
int ncclGetUniqueId(NcclUniqueId* id) {
  std::random_device random;
  std::snprintf(id->bytes.data(), id->bytes.size(), "/dev/shm/fake_nccl_%08x%08x",
                random(), random());
  return 0;
}
const char* ncclGetErrorString(int result) {
  return result == 5 ? "invalid usage" : result == 3 ? "internal error" : "system error";
}
const char* ncclGetLastError(void*) { return ""; }

int ncclCommInitRankConfig(void** comm, int ranks, NcclUniqueId id, int rank,
                           NcclConfig* config) {
  const bool is_default =
      config->cga_cluster_size == INT_MIN && config->traffic_class == INT_MIN;
  if (config->magic != 0xcafebeef || config->blocking != 0 || !is_default ||
      ranks > kMaxRanks) {
    return 4;
  }
  const int file = open(id.bytes.data(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Hall)) != 0) return 2;
  auto made = std::make_shared<FakeComm>();
  made->hall = static_cast<Hall*>(
      mmap(nullptr, sizeof(Hall), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  close(file);
  made->path = id.bytes.data();
  made->rank = rank;
  made->ranks = ranks;
  ReadFate(*made);
  const int device = CurrentDevice();
  made->helpers.emplace_back([made, device] { Join(made, device); });
  *comm = new Comm(std::move(made));
  return 7;
}
int ncclCommGetAsyncError(void* comm, int* result) {
  *result = CommOf(comm)->state;
  return 0;
}
int ncclCommFinalize(void*) { return 7; }
int ncclCommAbort(void* comm) {
  CommOf(comm)->is_aborted = true;
  for (std::thread& helper : CommOf(comm)->helpers) helper.join();
  CommOf(comm)->helpers.clear();  // they hold the communicator
  delete static_cast<Comm*>(comm);
  return 0;
}
int ncclCommDestroy(void* comm) { return ncclCommAbort(comm); }

int ncclGroupStart() {
  ++open_group.depth;
  return 0;
}
int ncclGroupEnd() { return CloseGroup(); }

int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, void* comm,
                  void* stream) {
  return Reduce(comm, stream,
                {.from = from,
                 .to = static_cast<std::byte*>(to),
                 .given = count,
                 .count = count,
                 .type = type,
                 .op = op});
}
int ncclReduce(const void* from, void* to, size_t count, int type, int op, int root,
               void* comm, void* stream) {
  const bool gets = CommOf(comm)->rank == root;
  return Reduce(comm, stream,
                {.from = from,
                 .to = gets ? static_cast<std::byte*>(to) : nullptr,
                 .given = count,
                 .count = count,
                 .type = type,
                 .op = op});
}
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int op,
                      void* comm, void* stream) {
  const auto rank = static_cast<size_t>(CommOf(comm)->rank);
  return Reduce(comm, stream,
                {.from = from,
                 .to = static_cast<std::byte*>(to),
                 .given = count * static_cast<size_t>(CommOf(comm)->ranks),
                 .first = rank * count,
                 .count = count,
                 .type = type,
                 .op = op});
}
int ncclAllGather(const void* from, void* to, size_t count, int type, void* comm,
                  void* stream) {
  const size_t bytes = count * kBytes[static_cast<size_t>(type)];
  return Launch(CommOf(comm), stream, [=](FakeComm& own) {
    RunCollective(own, {.from = from,
                        .bytes = bytes,
                        .take = [&](size_t first, size_t part, const Slots& slots) {
                          for (size_t rank = 0; rank < slots.size(); ++rank) {
                            std::memcpy(
                                static_cast<std::byte*>(to) + rank * bytes + first,
                                slots[rank], part);
                          }
                        }});
  });
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root,
                  void* comm, void* stream) {
  const size_t bytes = count * kBytes[static_cast<size_t>(type)];
  return Launch(CommOf(comm), stream, [=](FakeComm& own) {
    RunCollective(own, {.from = own.rank == root ? from : nullptr,
                        .bytes = bytes,
                        .take = [&](size_t first, size_t part, const Slots& slots) {
                          std::memcpy(static_cast<std::byte*>(to) + first,
                                      slots[static_cast<size_t>(root)], part);
                        }});
  });
}
int ncclSend(const void* from, size_t count, int type, int peer, void* comm,
             void* stream) {
  auto* const at = static_cast<std::byte*>(const_cast<void*>(from));
  const size_t bytes = count * kBytes[static_cast<size_t>(type)];
  return PutTransfer({.is_send = true, .at = at, .bytes = bytes, .peer = peer}, comm,
                     stream);
}
int ncclRecv(void* to, size_t count, int type, int peer, void* comm, void* stream) {
  const size_t bytes = count * kBytes[static_cast<size_t>(type)];
  return PutTransfer({.at = static_cast<std::byte*>(to), .bytes = bytes, .peer = peer},
                     comm, stream);
}
int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, void* comm) {
  if (residence != 1) return 4;
  auto* const at = static_cast<const std::byte*>(scalar);
  auto& factors = CommOf(comm)->factors;
  *op = 5 + static_cast<int>(factors.size());
  factors.push_back(IsFloat(type) ? FloatAt(type, at)
                                  : static_cast<double>(IntegerAt(type, at)));
  return 0;
}
int ncclRedOpDestroy(int op, void*) { return op >= 5 ? 0 : 4; }

}  // extern "C"
// NOLINTEND(readability-function-size)

}  // namespace syncline::fake_gpu
