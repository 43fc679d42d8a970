#include "comm/collective/group/group.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/machine.h"
#include "comm/base/status.h"
#include "comm/collective/group/board.h"
#include "comm/collective/group/execution.h"
#include "comm/collective/group/meeting.h"

namespace syncline::collective {
namespace {

// Of one rank's part of a segment of an all-reduce within a host: what was reduced is still
// in the cache when it is passed on. Between hosts it would only be a step that all wait in.
constexpr size_t kSliceBytes = size_t{64} << 10;
// How often to look whether all are well; so long a sleeper sleeps that nobody wakes.
constexpr absl::Duration kLook = absl::Milliseconds(5);
// About 50 us with a core for each rank: answers to small operations come sooner.
constexpr int kSpins = 1000;
constexpr int kSpinsOnNetwork = 100;
constexpr int kSpinsWhereCoresAreScarce = 20;
constexpr size_t kMostSchedules = 64;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Looking at sockets costs as much as ten looks at memory.
int SpinsOf(const Meeting& meeting, int rank) {
  const bool is_scarce =
      static_cast<int>(DescribeMachine().cores) < meeting.RanksBeside(rank);
  if (is_scarce) return kSpinsWhereCoresAreScarce;
  return meeting.hosts() > 1 ? kSpinsOnNetwork : kSpins;
}

bool InPlaceByNature(CollectiveOp op) {
  return op == CollectiveOp::kAllReduce || op == CollectiveOp::kBroadcast;
}

std::vector<int> InBoth(const std::vector<int>& some, const std::vector<int>& others) {
  std::vector<int> both;
  for (const int rank : some) {
    if (std::find(others.begin(), others.end(), rank) != others.end()) {
      both.push_back(rank);
    }
  }
  return both;
}

std::string KeyOf(const Problem& problem, Algorithm algorithm) {
  return absl::StrCat(static_cast<int>(problem.op), "/", static_cast<int>(algorithm), "/",
                      problem.root, "/", problem.source, "/", problem.count, "/",
                      problem.segment, "/", problem.exact, "/",
                      absl::StrJoin(problem.send_counts, ","), "/",
                      absl::StrJoin(problem.receive_counts, ","));
}

}  // namespace

class Group::Pending {
 public:
  Call call;
  CallHeader header;
  absl::Duration deadline;
  std::unique_ptr<Task> task;  // once begun
  bool moved = false;          // since the last look
  absl::Status status;         // once done
  std::atomic<bool> done = false;
};

Group::Group(const GroupOptions& options, Meeting meeting)
    : options_(options),
      wire_(std::move(meeting.wire)),
      topology_({.hosts = meeting.hosts()}),
      local_(meeting.RanksOfEachHost()),
      spins_(SpinsOf(meeting, options.rank)),
      sends_(static_cast<size_t>(options.ranks)),
      receives_(static_cast<size_t>(options.ranks)),
      sent_(static_cast<size_t>(options.ranks)),
      received_(static_cast<size_t>(options.ranks)) {}

absl::StatusOr<std::unique_ptr<Group>> Group::Create(const GroupOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(Meeting meeting, Meet(options));
  std::unique_ptr<Group> group(new Group(options, std::move(meeting)));
  if (group->wire_->tend_every() < absl::InfiniteDuration()) {
    group->tender_ = std::thread([&group = *group] { group.Tend(); });
  }
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
    ends_.SignalAll();
  }
  if (worker_.joinable()) worker_.join();
  if (tender_.joinable()) tender_.join();
}

bool Group::IsExact(const Call& call) const {
  return options_.exact_order && Reduces(call.op) && OrderMatters(call.type, call.reduce);
}

Problem Group::ProblemOf(const Call& call) const {
  return {.op = call.op,
          .rank = options_.rank,
          .ranks = options_.ranks,
          .root = call.root,
          .source = call.source,
          .count = call.count,
          .local = local_,
          .exact = IsExact(call),
          .rounds = RoundsPartials(call.type),
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
  if (!worker_.joinable()) {
    try {
      worker_ = std::thread([this] { Work(); });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "cannot start the thread of a group: ", error.what(),
          "; nothing was begun: raise the limit of processes, or run the operation "
          "instead of starting it"));
    }
  }
  SYNCLINE_RETURN_IF_ERROR(Enqueue(pending));
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
    HandOver();
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
    HandOver();
  }
}

bool Group::HasActive() const {
  const auto full = [](const Queue& queue) { return !queue.empty(); };
  return full(collectives_) || std::any_of(sends_.begin(), sends_.end(), full) ||
         std::any_of(receives_.begin(), receives_.end(), full);
}

void Group::TakeIncoming() {
  absl::MutexLock lock(&mutex_);
  // One by one: none is lost where memory for the queue is.
  for (; !incoming_.empty(); incoming_.pop_front()) {
    const Handle& pending = incoming_.front();
    const Call& call = pending->call;
    if (call.op != CollectiveOp::kSendReceive) {
      collectives_.push_back(pending);
    } else if (call.source == options_.rank) {
      sends_[static_cast<size_t>(call.root)].push_back(pending);
    } else {
      receives_[static_cast<size_t>(call.source)].push_back(pending);
    }
  }
  has_incoming_ = false;
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
  SharedWire* const board = wire_->board();
  const bool on_board =
      board != nullptr && options_.ranks > 1 && FitsBoard(call) && !call.algorithm;
  if (call.op == CollectiveOp::kAllReduce && algorithm == Algorithm::kDirect &&
      topology_.hosts == 1) {
    problem.segment =
        static_cast<size_t>(options_.ranks) * kSliceBytes / ElementBytes(call.type);
  }
  pending.header = {
      .count = call.send_counts.empty() ? call.count : 0,
      .segment = problem.segment,
      .root = static_cast<uint32_t>(call.root),
      .source = static_cast<uint32_t>(call.source),
      .tag = call.tag,
      .op = static_cast<uint8_t>(call.op),
      .type = static_cast<uint8_t>(call.type),
      .reduce = static_cast<uint8_t>(call.reduce),
      .algorithm = on_board ? kBoardAlgorithm : static_cast<uint8_t>(algorithm),
      .exact = static_cast<uint8_t>(IsExact(call))};
  if (direct) {
    const bool sends = call.source == options_.rank;
    auto& counter = sends ? sent_[static_cast<size_t>(call.root)]
                          : received_[static_cast<size_t>(call.source)];
    pending.header.sequence = ++counter;
  } else {
    pending.header.sequence = ++begun_;
    wire_->Enter(pending.header);
    if (on_board) {
      pending.task =
          std::make_unique<BoardTask>(*board, call, pending.header, ++boarded_);
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
  front.moved |= moved;
  if (const absl::Status status = front.task->status(); !status.ok()) {
    FailAll(status);
    return true;
  }
  if (!front.task->done()) return moved;
  // What this rank has given is on its way before anybody hears that it is done.
  wire_->Progress();
  const Handle finished = std::move(queue.front());
  queue.pop_front();
  Complete(*finished, absl::OkStatus());
  return true;
}

bool Group::AdvanceAll() {
  if (has_incoming_) TakeIncoming();
  wire_->Progress();
  bool moved = AdvanceFront(collectives_);
  for (Queue& queue : sends_) moved |= AdvanceFront(queue);
  for (Queue& queue : receives_) moved |= AdvanceFront(queue);
  return moved;
}

void Group::Drive(const Pending* until, absl::Duration deadline) {
  try {
    DriveUntil(until, deadline);
  } catch (const std::exception& error) {
    FailAll(absl::ResourceExhaustedError(absl::StrCat(
        "rank ", options_.rank, " has no memory for an operation: ", error.what(),
        "; make it smaller, or choose another algorithm; the group is over")));
  }
}

void Group::DriveUntil(const Pending* until, absl::Duration deadline) {
  int idle = 0;
  while (!abort_) {
    if (until != nullptr ? until->done.load() : !HasActive() && !has_incoming_) return;
    if (AdvanceAll()) {
      idle = 0;
    } else {
      Idle(&idle);
      if (idle > 0) continue;
    }
    // Also while something moves: it may be something else, and nothing moves forever.
    const absl::Duration now = clock_.Now();
    if (now - looked_ >= kLook) Look();
    if (now >= deadline) return;
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
}

void Group::Look() {
  looked_ = clock_.Now();
  TendIfItIsTime();
  absl::Status status = CheckFront(collectives_);
  for (Queue& queue : sends_) status.Update(CheckFront(queue));
  for (Queue& queue : receives_) status.Update(CheckFront(queue));
  if (!status.ok()) FailAll(status);
}

absl::Status Group::CheckFront(Queue& queue) {
  if (queue.empty() || queue.front()->task == nullptr) return absl::OkStatus();
  Pending& front = *queue.front();
  if (looked_ >= front.deadline) return TooLate(front);
  if (std::exchange(front.moved, false)) return absl::OkStatus();
  const absl::Status status = CheckPeers(front);
  // What a rank sent before it left, died or failed counts.
  if (status.ok() || AdvanceFront(queue)) return absl::OkStatus();
  return CheckPeers(front);
}

absl::Status Group::CheckPeers(const Pending& pending) {
  const bool direct = pending.call.op == CollectiveOp::kSendReceive;
  const std::vector<int> ranks = pending.task->WaitingFor();
  absl::Status status = wire_->Check(ranks, direct ? nullptr : &pending.header);
  if (!absl::IsAborted(status)) return status;
  // A rank may have sent the rest, and left, between the two.
  const std::vector<int> still = pending.task->WaitingFor();
  const int gone = FailedRank(status).value_or(-1);
  const auto has = [gone](const std::vector<int>& some) {
    return std::find(some.begin(), some.end(), gone) != some.end();
  };
  return has(ranks) && !has(still) ? absl::OkStatus() : status;
}

absl::Status Group::TooLate(const Pending& pending) const {
  std::vector<int> ranks = pending.task->WaitingFor();
  if (pending.call.op != CollectiveOp::kSendReceive) {
    // Somebody may wait for another one, too, or have given its part and not said so.
    const std::vector<int> behind = wire_->Behind(pending.header.sequence);
    const std::vector<int> at_fault = InBoth(ranks, behind);
    if (!behind.empty()) ranks = at_fault.empty() ? behind : at_fault;
  }
  if (ranks.empty()) {
    return absl::DeadlineExceededError(absl::StrCat(
        Describe(pending.header), " was under way, but did not end in time"));
  }
  absl::Status status = absl::DeadlineExceededError(
      absl::StrCat("rank ", absl::StrJoin(ranks, ", "), " did not take part in ",
                   Describe(pending.header), " in time"));
  SetFailedRank(status, ranks.front());
  return status;
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

}  // namespace syncline::collective
