// How servers end without ending a job. A server that gets SIGTERM and takes part in
// backups sends Drain, and waits for Drained before it ends. A server that an operator
// wants to end is sent EndServer, and then does the same.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/printable.h"
#include "server/coordinator/coordinator_impl.h"
#include "server/coordinator/member_names.h"

namespace syncline {

// If no other server could hold the backups, the server need not wait.
void Coordinator::Impl::LetDrainedGo() {
  Job::LeavingHosts leaving;
  bool is_another_there = !absent_.empty();  // an absent server may return
  for (const auto& [number, server] : servers_) {
    if (server.drains) leaving[server.name] = server.is_drained;
    is_another_there = is_another_there || server.TakesPlaces();
  }
  if (leaving.empty()) return;
  for (const auto& [name, job] : jobs_) {
    if (is_another_there) job->MoveBackups(leaving, ConnectedServers(), now_);
  }
  for (auto& [number, attached] : servers_) {
    Server& server = attached;
    if (!server.drains || server.is_drained) continue;
    const bool is_needed = std::ranges::any_of(jobs_, [&](const auto& entry) {
      return entry.second->NeedsHost(server.name, leaving);
    });
    if (is_needed && is_another_there) continue;
    server.is_drained = leaving[server.name] = true;
    outbox_.Send(server.connection, Drained{});
    SayOfServers(absl::StrCat("server ", number, " (", server.name, ") may end: ",
                              is_needed ? "no other server can take what it has"
                                        : "other servers have all that it has"));
  }
}

// ---- What an operator wants ----

absl::StatusOr<Coordinator::Impl::Server*> Coordinator::Impl::FindServer(
    const std::string& asked) {
  const auto named = std::ranges::find_if(
      servers_, [&](const auto& entry) { return entry.second.name == asked; });
  if (named != servers_.end()) return &named->second;
  uint32_t number = 0;
  if (absl::SimpleAtoi(asked, &number) && servers_.contains(number)) {
    return &servers_.at(number);
  }
  return absl::NotFoundError(
      absl::StrCat("there is no server '", Printable(asked, kMaxMemberNameBytes),
                   "'; 'syncline status' lists all that are attached"));
}

absl::Status Coordinator::Impl::CheckDrain(const Server& server) const {
  std::vector<JobServer> others = AttachedServers();
  std::erase_if(others, [&](const JobServer& one) {
    return one.server == server.number ||
           servers_.at(one.server).disconnected_at.has_value();
  });
  std::vector<std::string> harms;
  for (const auto& [name, job] : jobs_) {
    const auto harm = job->HarmOfLosing(server.name, others);
    if (harm) harms.push_back(absl::StrCat("job '", name, "' ", *harm));
  }
  if (harms.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("server ", server.number, " (", server.name, ") was not told to end: ",
                   absl::StrJoin(harms, "; "), ". --force ends it all the same"));
}

// EndServer is sent once, because a second signal would end the server at once.
void Coordinator::Impl::OnDrain(const DrainServer& order) {
  const absl::StatusOr<Server*> found = FindServer(order.server);
  if (!found.ok()) return outbox_.Add(CallAnswer{found.status()});
  Server& server = **found;
  const std::string name = absl::StrCat("server ", server.number, " (", server.name, ")");
  absl::Status status;
  if (server.is_stand_in) {
    status = absl::FailedPreconditionError(absl::StrCat(
        name, " is a backup in the process of another server: drain that server"));
  } else if (server.name == options_.own_server) {
    status = absl::FailedPreconditionError(
        absl::StrCat(name,
                     " is in the coordinator's process, which all jobs need: end that "
                     "process instead"));
  } else if (!server.IsLeaving() && !order.force) {
    status = CheckDrain(server);
  }
  outbox_.Add(
      CallAnswer{.status = status, .server = server.number, .server_name = server.name});
  if (!status.ok() || server.IsLeaving()) return;
  server.is_to_end = true;
  outbox_.Send(server.connection, EndServer{});
  SayOfServers(absl::StrCat(name, " was told to end by an operator"));
}

}  // namespace syncline
