#include "comm/collective/group/group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/machine.h"
#include "comm/base/status.h"
#include "comm/collective/group/board.h"
#include "comm/collective/group/execution.h"

namespace syncline {
namespace {

// Of one rank's part of a segment of an all-reduce: what was reduced is still in the cache
// when it is passed on.
constexpr size_t kSliceBytes = size_t{64} << 10;
// How long a sleeper that nobody wakes sleeps until it looks whether all are well.
constexpr absl::Duration kLook = absl::Milliseconds(5);
// About 50 us with a core for each rank: answers to small operations come sooner.
constexpr int kSpins = 1000;
constexpr int kSpinsWhereCoresAreScarce = 20;
constexpr size_t kMostSchedules = 64;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

absl::Status CheckMemory(const Call& call, int rank) {
  const CollectiveOp op = call.op;
  const bool root = call.root == rank;
  const bool in_place = op == CollectiveOp::kAllReduce || op == CollectiveOp::kBroadcast;
  bool reads = !in_place;
  bool writes = true;
  if (op == CollectiveOp::kScatter) reads = root;
  if (op == CollectiveOp::kReduce || op == CollectiveOp::kGather) writes = root;
  if (op == CollectiveOp::kSendReceive) {
    reads = call.source == rank;
    writes = root;
  }
  const bool nothing =
      op == CollectiveOp::kBarrier || (call.count == 0 && call.send_counts.empty());
  if (nothing ||
      ((!reads || call.input != nullptr) && (!writes || call.output != nullptr)))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(CollectiveName(op)), " of ", call.count, " elements got no ",
      reads && call.input == nullptr ? "input" : "output"));
}

bool InPlaceByNature(CollectiveOp op) {
  return op == CollectiveOp::kAllReduce || op == CollectiveOp::kBroadcast;
}

std::string KeyOf(const Problem& problem, Algorithm algorithm) {
  return absl::StrCat(static_cast<int>(problem.op), "/", static_cast<int>(algorithm), "/",
                      problem.root, "/", problem.source, "/", problem.count, "/",
                      problem.segment, "/", absl::StrJoin(problem.send_counts, ","), "/",
                      absl::StrJoin(problem.receive_counts, ","));
}

}  // namespace

class Group::Pending {
 public:
  Call call;
  CallHeader header;
  absl::Duration deadline;
  std::unique_ptr<Task> task;  // once begun
  absl::Status status;         // once done
  std::atomic<bool> done = false;
};

Group::Group(const GroupOptions& options, std::unique_ptr<SharedWire> wire)
    : options_(options),
      wire_(std::move(wire)),
      spins_(static_cast<int>(DescribeMachine().cores) >= options.ranks
                 ? kSpins
                 : kSpinsWhereCoresAreScarce),
      sends_(static_cast<size_t>(options.ranks)),
      receives_(static_cast<size_t>(options.ranks)),
      sent_(static_cast<size_t>(options.ranks)),
      received_(static_cast<size_t>(options.ranks)) {}

absl::StatusOr<std::unique_ptr<Group>> Group::Create(const GroupOptions& options) {
  if (options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks ||
      options.store == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a group needs a store and a rank below the number of ranks, got rank ",
        options.rank, " of ", options.ranks));
  }
  const SharedLayout layout = SharedLayout::For(options.ranks);
  SYNCLINE_ASSIGN_OR_RETURN(auto own, SharedSegment::Create(layout));
  const std::string place = SharedPlace();
  const auto key = [&](int rank) { return absl::StrCat(options.name, "/", rank); };
  SYNCLINE_RETURN_IF_ERROR(
      options.store->Set(key(options.rank), absl::StrCat(own->address(), "@", place)));
  std::vector<std::unique_ptr<SharedSegment>> peers(static_cast<size_t>(options.ranks));
  for (int rank = 0; rank < options.ranks; ++rank) {
    if (rank == options.rank) continue;
    SYNCLINE_ASSIGN_OR_RETURN(const std::string card,
                              options.store->Get(key(rank), options.start_timeout));
    const size_t at = card.find('@');
    if (at == std::string::npos || card.substr(at + 1) != place) {
      return absl::UnimplementedError(absl::StrCat(
          "rank ", rank, " cannot share memory with rank ", options.rank,
          ": it runs on another host, in another container, or as another user; groups "
          "between hosts are not there yet"));
    }
    SYNCLINE_ASSIGN_OR_RETURN(peers[static_cast<size_t>(rank)],
                              SharedSegment::Open(card.substr(0, at), layout));
  }
  auto wire = std::make_unique<SharedWire>(options.rank, std::move(own), std::move(peers),
                                           options.failure_timeout);
  std::unique_ptr<Group> group(new Group(options, std::move(wire)));
  // Nobody may leave before all have found its memory.
  SYNCLINE_RETURN_IF_ERROR(
      group->Run({.op = CollectiveOp::kBarrier, .timeout = options.start_timeout}));
  return group;
}

Group::~Group() {
  TakeOver();
  // Whoever leaves with nothing under way only says goodbye.
  TakeIncoming();
  if (HasActive()) FailAll(absl::CancelledError("a rank ended the group"));
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (worker_.joinable()) worker_.join();
}

Problem Group::ProblemOf(const Call& call) const {
  return {.op = call.op,
          .rank = options_.rank,
          .ranks = options_.ranks,
          .root = call.root,
          .source = call.source,
          .count = call.count,
          .send_counts = call.send_counts,
          .receive_counts = call.receive_counts};
}

Choice Group::Choose(const Call& call) const {
  return Select(ProblemOf(call), ElementBytes(call.type), topology_);
}

absl::Status Group::CheckCall(const Call& call) const {
  if (static_cast<int>(call.type) >= kElementTypes ||
      static_cast<int>(call.reduce) >= kReduceOps) {
    return absl::InvalidArgumentError("an unknown element type or reduction");
  }
  SYNCLINE_RETURN_IF_ERROR(
      MakeSchedule(ProblemOf(call), call.algorithm.value_or(Algorithm::kDirect))
          .status());
  const int self = options_.rank;
  SYNCLINE_RETURN_IF_ERROR(CheckMemory(call, self));
  if (call.op == CollectiveOp::kSendReceive && call.root != self && call.source != self) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", self,
                                                   " neither sends nor receives between ",
                                                   call.source, " and ", call.root));
  }
  return absl::OkStatus();
}

absl::Status Group::Enqueue(const Handle& pending) {
  if (!failure_.ok()) return failure_;
  incoming_.push_back(pending);
  has_incoming_ = true;
  if (driving_) wire_->Wake();
  return absl::OkStatus();
}

absl::StatusOr<Group::Handle> Group::Start(Call call) {
  SYNCLINE_RETURN_IF_ERROR(CheckCall(call));
  auto pending = std::make_shared<Pending>();
  const absl::Duration timeout =
      call.timeout > absl::ZeroDuration() ? call.timeout : options_.timeout;
  pending->deadline = clock_.Now() + timeout;
  pending->call = std::move(call);
  absl::MutexLock lock(&mutex_);
  SYNCLINE_RETURN_IF_ERROR(Enqueue(pending));
  if (!worker_.joinable()) worker_ = std::thread([this] { Work(); });
  if (!driving_) changed_.SignalAll();
  return pending;
}

absl::Status Group::Run(Call call) {
  SYNCLINE_RETURN_IF_ERROR(CheckCall(call));
  auto pending = std::make_shared<Pending>();
  const absl::Duration timeout =
      call.timeout > absl::ZeroDuration() ? call.timeout : options_.timeout;
  pending->deadline = clock_.Now() + timeout;
  pending->call = std::move(call);
  {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(Enqueue(pending));
  }
  return Wait(pending, absl::InfiniteDuration());
}

bool Group::IsDone(const Handle& handle) const { return handle->done; }

absl::Status Group::Wait(const Handle& handle, absl::Duration timeout) {
  const absl::Duration deadline = clock_.Now() + timeout;
  absl::MutexLock lock(&mutex_);
  while (!handle->done) {
    if (clock_.Now() >= deadline) {
      return absl::DeadlineExceededError("the operation still goes on");
    }
    if (driving_ || abort_) {
      changed_.WaitUntil(mutex_, clock_, deadline);
      continue;
    }
    driving_ = true;
    mutex_.Unlock();
    Drive(handle.get(), deadline);
    mutex_.Lock();
    driving_ = false;
    changed_.SignalAll();
  }
  return handle->status;
}

void Group::Work() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    if (driving_ || abort_ || (!has_incoming_ && !HasActive())) {
      changed_.Wait(mutex_);
      continue;
    }
    driving_ = true;
    mutex_.Unlock();
    Drive(nullptr, absl::InfiniteDuration());
    mutex_.Lock();
    driving_ = false;
    changed_.SignalAll();
  }
}

void Group::TakeOver() {
  abort_ = true;
  wire_->Wake();
  absl::MutexLock lock(&mutex_);
  while (driving_) changed_.Wait(mutex_);
  driving_ = true;
}

void Group::Abort() {
  TakeOver();
  FailAll(absl::CancelledError("the group was aborted by this process"));
  absl::MutexLock lock(&mutex_);
  driving_ = false;
  changed_.SignalAll();
}

absl::Status Group::status() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

bool Group::HasActive() const {
  const auto full = [](const Queue& queue) { return !queue.empty(); };
  return full(collectives_) || std::any_of(sends_.begin(), sends_.end(), full) ||
         std::any_of(receives_.begin(), receives_.end(), full);
}

void Group::TakeIncoming() {
  Queue taken;
  {
    absl::MutexLock lock(&mutex_);
    taken.swap(incoming_);
    has_incoming_ = false;
  }
  for (Handle& pending : taken) {
    const Call& call = pending->call;
    if (call.op != CollectiveOp::kSendReceive) {
      collectives_.push_back(std::move(pending));
    } else if (call.source == options_.rank) {
      sends_[static_cast<size_t>(call.root)].push_back(std::move(pending));
    } else {
      receives_[static_cast<size_t>(call.source)].push_back(std::move(pending));
    }
  }
}

absl::StatusOr<std::shared_ptr<const Schedule>> Group::ScheduleFor(const Problem& problem,
                                                                   Algorithm algorithm) {
  if (schedules_.size() >= kMostSchedules) schedules_.clear();
  std::shared_ptr<const Schedule>& kept = schedules_[KeyOf(problem, algorithm)];
  if (kept == nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(Schedule made, MakeSchedule(problem, algorithm));
    kept = std::make_shared<const Schedule>(std::move(made));
  }
  return kept;
}

absl::Status Group::Begin(Pending& pending) {
  const Call& call = pending.call;
  const bool direct = call.op == CollectiveOp::kSendReceive;
  Problem problem = ProblemOf(call);
  const Algorithm algorithm = call.algorithm ? *call.algorithm : Choose(call).algorithm;
  if (call.op == CollectiveOp::kAllReduce && algorithm == Algorithm::kDirect) {
    problem.segment =
        static_cast<size_t>(options_.ranks) * kSliceBytes / ElementBytes(call.type);
  }
  pending.header = {.count = call.send_counts.empty() ? call.count : 0,
                    .segment = problem.segment,
                    .root = static_cast<uint32_t>(call.root),
                    .source = static_cast<uint32_t>(call.source),
                    .tag = call.tag,
                    .op = static_cast<uint8_t>(call.op),
                    .type = static_cast<uint8_t>(call.type),
                    .reduce = static_cast<uint8_t>(call.reduce),
                    .algorithm = static_cast<uint8_t>(algorithm)};
  if (direct) {
    const bool sends = call.source == options_.rank;
    auto& counter = sends ? sent_[static_cast<size_t>(call.root)]
                          : received_[static_cast<size_t>(call.source)];
    pending.header.sequence = ++counter;
  } else {
    pending.header.sequence = ++begun_;
    wire_->Enter(pending.header);
    if (options_.ranks > 1 && FitsBoard(call) && !call.algorithm) {
      pending.task =
          std::make_unique<BoardTask>(*wire_, call, pending.header, ++boarded_);
      return absl::OkStatus();
    }
  }
  if (InPlaceByNature(call.op) && call.input != nullptr && call.input != call.output &&
      (call.op != CollectiveOp::kBroadcast || call.root == options_.rank)) {
    std::memcpy(call.output, call.input, call.count * ElementBytes(call.type));
  }
  ExecutionPlan plan = {
      .header = pending.header,
      .send_counts = call.send_counts,
      .receive_counts = call.receive_counts,
      .combination = {.type = call.type, .op = call.reduce, .divide_by = options_.ranks},
      .input = static_cast<const std::byte*>(call.input),
      .output = static_cast<std::byte*>(call.output)};
  SYNCLINE_ASSIGN_OR_RETURN(plan.schedule, ScheduleFor(problem, algorithm));
  pending.task = std::make_unique<Execution>(
      std::move(plan), direct ? wire_->direct_lanes() : wire_->lanes());
  return absl::OkStatus();
}

void Group::Complete(Pending& pending, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  pending.status = status;
  pending.task = nullptr;
  pending.done = true;
  changed_.SignalAll();
}

bool Group::AdvanceFront(Queue& queue) {
  if (queue.empty()) return false;
  Pending& front = *queue.front();
  if (front.task == nullptr) {
    if (const absl::Status begun = Begin(front); !begun.ok()) {
      FailAll(begun);
      return true;
    }
  }
  const bool moved = front.task->Advance();
  if (const absl::Status status = front.task->status(); !status.ok()) {
    FailAll(status);
    return true;
  }
  if (!front.task->done()) return moved;
  const Handle finished = std::move(queue.front());
  queue.pop_front();
  Complete(*finished, absl::OkStatus());
  return true;
}

bool Group::AdvanceAll() {
  if (has_incoming_) TakeIncoming();
  bool moved = AdvanceFront(collectives_);
  for (Queue& queue : sends_) moved |= AdvanceFront(queue);
  for (Queue& queue : receives_) moved |= AdvanceFront(queue);
  return moved;
}

void Group::Drive(const Pending* until, absl::Duration deadline) {
  int idle = 0;
  while (!abort_) {
    if (until != nullptr ? until->done.load() : !HasActive() && !has_incoming_) return;
    if (AdvanceAll()) {
      idle = 0;
      continue;
    }
    Idle(&idle);
    if (idle == 0 && clock_.Now() >= deadline) return;
  }
}

void Group::Idle(int* idle) {
  if (++*idle < spins_) {
    Pause();
    return;
  }
  *idle = 0;
  wire_->PrepareToSleep();
  if (AdvanceAll() || abort_ || !HasActive()) {
    wire_->Stay();
    return;
  }
  wire_->Sleep(kLook);
  const absl::Status status = CheckAll();
  // What a rank sent before it left, or died, counts.
  if (!status.ok() && !AdvanceAll()) FailAll(status);
}

absl::Status Group::CheckFront(const Queue& queue, absl::Duration now) {
  if (queue.empty() || queue.front()->task == nullptr) return absl::OkStatus();
  const Pending& front = *queue.front();
  const bool direct = front.call.op == CollectiveOp::kSendReceive;
  std::vector<int> ranks = front.task->WaitingFor();
  SYNCLINE_RETURN_IF_ERROR(wire_->Check(ranks, direct ? nullptr : &front.header));
  if (now < front.deadline) return absl::OkStatus();
  if (const auto behind = wire_->Behind(front.header.sequence);
      !direct && !behind.empty()) {
    ranks = behind;
  }
  absl::Status status = absl::DeadlineExceededError(
      absl::StrCat("rank ", absl::StrJoin(ranks, ", "), " did not take part in ",
                   Describe(front.header), " in time"));
  if (!ranks.empty()) SetFailedRank(status, ranks.front());
  return status;
}

absl::Status Group::CheckAll() {
  const absl::Duration now = clock_.Now();
  SYNCLINE_RETURN_IF_ERROR(CheckFront(collectives_, now));
  for (const Queue& queue : sends_) SYNCLINE_RETURN_IF_ERROR(CheckFront(queue, now));
  for (const Queue& queue : receives_) SYNCLINE_RETURN_IF_ERROR(CheckFront(queue, now));
  return absl::OkStatus();
}

void Group::FailAll(const absl::Status& status) {
  wire_->Report(status);
  {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = status;
  }
  TakeIncoming();
  std::vector<Queue*> queues = {&collectives_};
  for (Queue& queue : sends_) queues.push_back(&queue);
  for (Queue& queue : receives_) queues.push_back(&queue);
  for (Queue* queue : queues) {
    for (const Handle& pending : *queue) Complete(*pending, status);
    queue->clear();
  }
}

}  // namespace syncline
