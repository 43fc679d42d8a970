#include "server/coordinator/workers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/coordinator/member_names.h"

namespace syncline {
namespace {

// Number of heartbeats that a living process may miss under load.
constexpr int kMissedBeats = 2;

}  // namespace

const JobWorker* Workers::Find(uint32_t rank) const {
  const auto found = workers_.find(rank);
  return found == workers_.end() ? nullptr : &found->second;
}

JobWorker* Workers::Find(uint32_t rank) {
  const auto found = workers_.find(rank);
  return found == workers_.end() ? nullptr : &found->second;
}

const JobWorker* Workers::Find(uint32_t rank, uint32_t incarnation) const {
  const JobWorker* worker = Find(rank);
  return worker == nullptr || worker->incarnation != incarnation ? nullptr : worker;
}

JobWorker* Workers::Find(uint32_t rank, uint32_t incarnation) {
  JobWorker* worker = Find(rank);
  return worker == nullptr || worker->incarnation != incarnation ? nullptr : worker;
}

std::string Workers::Named(uint32_t rank) const {
  const JobWorker* worker = Find(rank);
  if (worker == nullptr) return absl::StrCat("worker ", rank);
  return absl::StrCat("worker ", rank, " (", worker->name, ")");
}

void Workers::Forget(uint32_t rank) {
  const auto gone = workers_.find(rank);
  NoteStep(gone->second.beat.step);
  workers_.erase(gone);
}

void Workers::ForgetAll() {
  for (const auto& [rank, worker] : workers_) NoteStep(worker.beat.step);
  workers_.clear();
}

void Workers::Hear(uint32_t rank, const Heartbeat& beat, absl::Duration now) {
  JobWorker& worker = workers_.at(rank);
  const CompressionFigures& said = beat.compression;
  const CompressionFigures& before = worker.beat.compression;
  // Both only grow during one incarnation.
  if (said.pushed_values >= before.pushed_values &&
      said.pushed_value_bytes >= before.pushed_value_bytes) {
    pushed_.pushed_values += said.pushed_values - before.pushed_values;
    pushed_.pushed_value_bytes += said.pushed_value_bytes - before.pushed_value_bytes;
  }
  worker.heard_at = now;
  worker.beat = beat;
}

// ---- Who counts ----

size_t Workers::CountInsiders(const std::string& host) const {
  return static_cast<size_t>(std::ranges::count_if(workers_, [&](const auto& entry) {
    return !entry.second.outside &&
           (host.empty() || HostOfMember(entry.second.name) == host);
  }));
}

bool Workers::AreMembers(const std::vector<MemberRecord>& members) const {
  return CountInsiders("") == members.size() &&
         std::ranges::all_of(members, [this](const MemberRecord& member) {
           return Find(member.rank, member.incarnation) != nullptr;
         });
}

size_t Workers::awaited() const {
  return static_cast<size_t>(std::ranges::count_if(
      workers_, [](const auto& entry) { return entry.second.is_awaited; }));
}

bool Workers::MayBeDead(const JobWorker& worker, absl::Duration now) const {
  return !worker.connected || now - worker.heard_at > kMissedBeats * interval_;
}

absl::Status Workers::CheckMayLack(uint32_t rank, const std::string& job,
                                   const std::set<std::string>& serving) const {
  if (CountInsiders("") < 2) {
    return absl::FailedPreconditionError(
        absl::StrCat(Named(rank), " is the only member of job '", job, "'"));
  }
  const std::string host = HostOfMember(at(rank).name);
  const bool serves = !host.empty() && serving.contains(host);
  if (!serves || CountInsiders(host) > 1) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Named(rank),
                   " is the last worker on a host with servers of the job, and its "
                   "launcher may end them with it"));
}

// ---- How far they are ----

uint64_t Workers::LowestStep() const {
  std::optional<uint64_t> lowest;
  for (const auto& [rank, worker] : workers_) {
    if (worker.is_awaited || !worker.welcomed) continue;
    const uint64_t step = std::max(worker.beat.step, worker.first_step);
    lowest = std::min(lowest.value_or(step), step);
  }
  return lowest.value_or(last_step_);
}

uint64_t Workers::HighestStep() const {
  uint64_t highest = 0;
  for (const auto& [rank, worker] : workers_) {
    if (worker.welcomed) highest = std::max(highest, worker.beat.step);
  }
  return highest;
}

uint64_t Workers::ReachedStep() const {
  uint64_t reached = 0;
  for (const auto& [rank, worker] : workers_) {
    const bool has_stepped = worker.welcomed && worker.beat.step > worker.first_step;
    if (has_stepped) reached = std::max(reached, worker.beat.step);
  }
  return reached;
}

void Workers::NoteStep(uint64_t step) { last_step_ = std::max(last_step_, step); }

std::vector<MemberView> Workers::View(absl::Duration now,
                                      absl::Duration awaited_since) const {
  std::vector<MemberView> members;
  for (const auto& [rank, worker] : workers_) {
    const absl::Duration heard_at = worker.is_awaited ? awaited_since : worker.heard_at;
    members.push_back({.rank = rank,
                       .incarnation = worker.incarnation,
                       .name = worker.name,
                       .step = worker.beat.step,
                       .bytes = worker.beat.bytes,
                       .waiting = worker.beat.waiting,
                       .is_outside = worker.outside,
                       .heartbeat_age = now - heard_at,
                       .is_silent = worker.is_awaited || MayBeDead(worker, now),
                       .left_out = worker.left_out,
                       .compression = worker.beat.compression,
                       .phases = worker.beat.phases,
                       .samples = worker.beat.samples,
                       .durations = worker.beat.durations,
                       .window_fill = worker.beat.window_fill,
                       .links = worker.beat.links});
  }
  return members;
}

// ---- Barriers ----

void Workers::NoteBarriers(uint64_t barriers) {
  barriers_ = std::max(barriers_, barriers);
}

bool Workers::EnterBarrier(uint32_t rank, uint64_t barrier) {
  JobWorker& worker = workers_.at(rank);
  // A worker that returns reports its barrier with its hello, and may report it again.
  if (barrier < worker.next_barrier) return false;
  worker.barrier = barrier;
  return true;
}

// Each worker is released from its own barrier number.
std::vector<ToMember> Workers::EndBarrier() {
  bool is_anyone = false;
  for (const auto& [rank, worker] : workers_) {
    if (worker.welcomed && !worker.barrier) return {};
    is_anyone |= worker.welcomed;
  }
  if (!is_anyone) return {};
  ++barriers_;
  return ReleaseThoseLeftBehind();
}

std::vector<ToMember> Workers::ReleaseThoseLeftBehind() {
  std::vector<ToMember> released;
  for (auto& [rank, worker] : workers_) {
    if (!worker.welcomed || !worker.barrier || worker.barriers >= barriers_) continue;
    released.push_back({worker.connection, BarrierReleased{*worker.barrier, barriers_}});
    worker.next_barrier = *worker.barrier + 1;
    worker.barrier.reset();
    worker.barriers = barriers_;
  }
  return released;
}

}  // namespace syncline
