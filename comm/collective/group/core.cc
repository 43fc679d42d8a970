#include "comm/collective/group/core.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/status.h"
#include "comm/collective/group/board.h"
#include "comm/collective/group/execution.h"

namespace syncline::collective {
namespace {

// One rank's part of a segment of an all-reduce within a host. Reduced values are then
// still in the cache when they are passed on. Between hosts segments would only add steps
// in which all ranks wait.
constexpr size_t kSliceBytes = size_t{64} << 10;
constexpr size_t kMaxSchedules = 64;

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

GroupCore::GroupCore(const GroupCoreOptions& options, Wire& wire, Observer& observer)
    : options_(options),
      topology_({.hosts = options.hosts}),
      wire_(wire),
      observer_(observer),
      sends_(static_cast<size_t>(options.ranks)),
      receives_(static_cast<size_t>(options.ranks)),
      sent_(static_cast<size_t>(options.ranks)),
      received_(static_cast<size_t>(options.ranks)) {}

bool GroupCore::IsExact(const Call& call) const {
  return options_.exact_order && Reduces(call.op) && OrderMatters(call.type, call.reduce);
}

Problem GroupCore::ProblemOf(const Call& call) const {
  return {.op = call.op,
          .rank = options_.rank,
          .ranks = options_.ranks,
          .root = call.root,
          .source = call.source,
          .count = call.count,
          .local = options_.local,
          .exact = IsExact(call),
          .rounds = RoundsPartials(call.type),
          .send_counts = call.send_counts,
          .receive_counts = call.receive_counts};
}

Choice GroupCore::Choose(const Call& call) const {
  return Select(ProblemOf(call), ElementBytes(call.type), topology_);
}

absl::Status GroupCore::CheckCall(const Call& call) const {
  if (static_cast<int>(call.type) >= kElementTypes ||
      static_cast<int>(call.reduce) >= kReduceOps) {
    return absl::InvalidArgumentError("an unknown element type or reduction");
  }
  if (call.label.size() > kLongestLabel) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the label '", call.label, "' is longer than ", kLongestLabel, " bytes"));
  }
  if (Reduces(call.op)) {
    SYNCLINE_RETURN_IF_ERROR(CheckReduction(call.type, call.reduce, call.factor));
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

void GroupCore::Add(const Handle& pending) {
  const Call& call = pending->call;
  if (call.op != CollectiveOp::kSendReceive) {
    collectives_.push_back(pending);
  } else if (call.source == options_.rank) {
    sends_[static_cast<size_t>(call.root)].push_back(pending);
  } else {
    receives_[static_cast<size_t>(call.source)].push_back(pending);
  }
}

bool GroupCore::HasActive() const {
  const auto full = [](const Queue& queue) { return !queue.empty(); };
  return full(collectives_) || std::any_of(sends_.begin(), sends_.end(), full) ||
         std::any_of(receives_.begin(), receives_.end(), full);
}

absl::StatusOr<std::shared_ptr<const Schedule>> GroupCore::ScheduleFor(
    const Problem& problem, Algorithm algorithm) {
  if (schedules_.size() >= kMaxSchedules) schedules_.clear();
  std::shared_ptr<const Schedule>& kept = schedules_[KeyOf(problem, algorithm)];
  if (kept == nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(Schedule made, MakeSchedule(problem, algorithm));
    kept = std::make_shared<const Schedule>(std::move(made));
  }
  return kept;
}

// Multiplies in place if the operation is in place, otherwise in a copy.
void GroupCore::Premultiply(PendingCall& pending) const {
  Call& call = pending.call;
  const size_t parts =
      call.op == CollectiveOp::kReduceScatter ? static_cast<size_t>(options_.ranks) : 1;
  const size_t bytes = parts * call.count * ElementBytes(call.type);
  auto* values = static_cast<std::byte*>(call.output);
  if (!InPlaceByNature(call.op)) {
    const auto* const given = static_cast<const std::byte*>(call.input);
    pending.scaled.assign(given, given + bytes);
    call.input = values = pending.scaled.data();
  } else if (call.input != nullptr) {
    if (bytes > 0 && call.input != call.output) {
      std::memcpy(call.output, call.input, bytes);
    }
    call.input = nullptr;
  }
  Scale(call.type, call.factor, parts * call.count, values);
}

absl::Status GroupCore::Begin(PendingCall& pending) {
  const Call& call = pending.call;
  if (Reduces(call.op) && call.reduce == ReduceOp::kPremultipliedSum) {
    Premultiply(pending);
  }
  const bool direct = call.op == CollectiveOp::kSendReceive;
  Problem problem = ProblemOf(call);
  const Algorithm algorithm = call.algorithm ? *call.algorithm : Choose(call).algorithm;
  SharedWire* const board = wire_.board();
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
  std::copy(call.label.begin(), call.label.end(), pending.header.label.begin());
  if (direct) {
    const bool sends = call.source == options_.rank;
    auto& counter = sends ? sent_[static_cast<size_t>(call.root)]
                          : received_[static_cast<size_t>(call.source)];
    pending.header.sequence = ++counter;
  } else {
    pending.header.sequence = ++begun_;
    wire_.Enter(pending.header);
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
      // Without an answer, each of two roots would be done after sending, although no
      // rank has what it needs.
      .answered =
          call.op == CollectiveOp::kBroadcast || call.op == CollectiveOp::kScatter,
      .send_counts = call.send_counts,
      .receive_counts = call.receive_counts,
      .combination = {.type = call.type, .op = call.reduce, .divide_by = options_.ranks},
      .input = static_cast<const std::byte*>(call.input),
      .output = static_cast<std::byte*>(call.output)};
  SYNCLINE_ASSIGN_OR_RETURN(plan.schedule, ScheduleFor(problem, algorithm));
  pending.task = std::make_unique<Execution>(
      std::move(plan), direct ? wire_.direct_lanes() : wire_.lanes());
  return absl::OkStatus();
}

void GroupCore::Complete(PendingCall& pending, const absl::Status& status) {
  pending.task = nullptr;
  pending.scaled = {};
  observer_.OnDone(pending, status);
}

bool GroupCore::AdvanceFront(Queue& queue) {
  if (queue.empty()) return false;
  PendingCall& front = *queue.front();
  if (front.task == nullptr) {
    if (const absl::Status begun = Begin(front); !begun.ok()) {
      Fail(begun);
      return true;
    }
  }
  const bool moved = front.task->Advance();
  front.moved |= moved;
  if (const absl::Status status = front.task->status(); !status.ok()) {
    Fail(status);
    return true;
  }
  if (!front.task->done()) return moved;
  // What this rank has given is on its way before anyone learns that the call is done.
  wire_.Progress();
  const Handle finished = std::move(queue.front());
  queue.pop_front();
  Complete(*finished, absl::OkStatus());
  return true;
}

bool GroupCore::Advance() {
  wire_.Progress();
  bool moved = AdvanceFront(collectives_);
  for (Queue& queue : sends_) moved |= AdvanceFront(queue);
  for (Queue& queue : receives_) moved |= AdvanceFront(queue);
  return moved;
}

void GroupCore::Look(absl::Duration now) {
  TendIfItIsTime(now);
  absl::Status status = CheckFront(collectives_, now);
  for (Queue& queue : sends_) status.Update(CheckFront(queue, now));
  for (Queue& queue : receives_) status.Update(CheckFront(queue, now));
  if (!status.ok()) Fail(status);
}

void GroupCore::TendIfItIsTime(absl::Duration now) {
  if (now - tended_ < wire_.tend_every()) return;
  tended_ = now;
  wire_.Tend();
}

absl::Status GroupCore::CheckFront(Queue& queue, absl::Duration now) {
  if (queue.empty() || queue.front()->task == nullptr) return absl::OkStatus();
  PendingCall& front = *queue.front();
  const bool is_late = now >= front.deadline;
  if (std::exchange(front.moved, false) && !is_late) return absl::OkStatus();
  absl::Status status = CheckPeers(front);
  // Data that a rank sent before it left, died or failed still counts.
  if (!status.ok()) {
    if (AdvanceFront(queue)) return absl::OkStatus();
    status = CheckPeers(front);
  }
  // A known failure takes precedence over a rank that is merely missing, also if this
  // rank itself was stopped until long after the deadline.
  return status.ok() && is_late ? TooLate(front) : status;
}

absl::Status GroupCore::CheckPeers(const PendingCall& pending) {
  const bool direct = pending.call.op == CollectiveOp::kSendReceive;
  const std::vector<int> ranks = pending.task->WaitingFor();
  absl::Status status = wire_.Check(ranks, direct ? nullptr : &pending.header);
  if (!absl::IsAborted(status)) return status;
  // A rank may have sent the rest and left between the two checks.
  const std::vector<int> still = pending.task->WaitingFor();
  const int gone = FailedRank(status).value_or(-1);
  const auto has = [gone](const std::vector<int>& some) {
    return std::find(some.begin(), some.end(), gone) != some.end();
  };
  return has(ranks) && !has(still) ? absl::OkStatus() : status;
}

absl::Status GroupCore::TooLate(const PendingCall& pending) const {
  std::vector<int> ranks = pending.task->WaitingFor();
  if (pending.call.op != CollectiveOp::kSendReceive) {
    // Other ranks may wait for another rank, too, or may have given their part without
    // saying so.
    const std::vector<int> behind = wire_.Behind(pending.header.sequence);
    const std::vector<int> at_fault = InBoth(ranks, behind);
    if (!behind.empty()) ranks = at_fault.empty() ? behind : at_fault;
  }
  if (ranks.empty()) {
    return absl::DeadlineExceededError(absl::StrCat(
        Describe(pending.header), " was under way, but did not end in time"));
  }
  absl::Status status = absl::DeadlineExceededError(
      absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "),
                   " did not take part in ", Describe(pending.header), " in time"));
  SetFailedRank(status, ranks.front());
  return status;
}

// For an operation that was late: a rank in another operation learns in which one it was,
// too.
absl::Status GroupCore::WithItsOwn(const absl::Status& status,
                                   const PendingCall& pending) {
  if (!absl::IsDeadlineExceeded(status) || pending.task == nullptr) return status;
  const std::string own = Describe(pending.header);
  if (absl::StrContains(status.message(), own)) return status;
  absl::Status told = absl::DeadlineExceededError(
      absl::StrCat(status.message(), "; this rank was in ", own));
  if (const std::optional<int> rank = FailedRank(status)) SetFailedRank(told, *rank);
  return told;
}

void GroupCore::Fail(const absl::Status& status) {
  wire_.Report(status);
  observer_.OnFailed(status);
  std::vector<Queue*> queues = {&collectives_};
  for (Queue& queue : sends_) queues.push_back(&queue);
  for (Queue& queue : receives_) queues.push_back(&queue);
  for (Queue* queue : queues) {
    for (const Handle& pending : *queue) {
      Complete(*pending, WithItsOwn(status, *pending));
    }
    queue->clear();
  }
}

}  // namespace syncline::collective
