// Servers that are to end without a job that ends with them. One that gets SIGTERM says so
// (Drain), if there are backups, and waits until it may (Drained). One that an operator
// wants to end is told that (EndServer), and then does the same.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/printable.h"
#include "server/coordinator/coordinator_impl.h"
#include "server/coordinator/member_names.h"

namespace syncline {

// When there is no other one to have it, waiting is of no use.
void Coordinator::Impl::LetDrainedGo() {
  Job::LeavingHosts leaving;
  bool is_another_there = !absent_.empty();  // it may come back
  for (const auto& [number, server] : servers_) {
    if (server.drains) leaving[server.name] = server.is_drained;
    is_another_there = is_another_there || server.TakesPlaces();
  }
  if (leaving.empty()) return;
  for (const auto& [name, job] : jobs_) {
    if (is_another_there) job->MoveBackups(leaving, outputs_);
  }
  for (auto& [number, attached] : servers_) {
    Server& server = attached;
    if (!server.drains || server.is_drained) continue;
    const bool is_needed = std::ranges::any_of(jobs_, [&](const auto& entry) {
      return entry.second->NeedsHost(server.name, leaving);
    });
    if (is_needed && is_another_there) continue;
    server.is_drained = leaving[server.name] = true;
    outputs_.push_back(ToMember{server.connection, Drained{}});
    SayOfServers(absl::StrCat(
        "server ", number, " (", server.name, ") may end: ",
        is_needed ? "no other one could have what it has" : "others have what it has"));
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
  return absl::NotFoundError(absl::StrCat("no server '",
                                          Printable(asked, kMaxMemberNameBytes),
                                          "' is attached; syncline status has them all"));
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
  return absl::FailedPreconditionError(absl::StrCat(
      "server ", server.number, " (", server.name,
      ") is not told to end: ", absl::StrJoin(harms, "; "), ". With --force it is"));
}

// Once: a second signal would end it as it is.
void Coordinator::Impl::OnDrain(const DrainServer& order) {
  const absl::StatusOr<Server*> found = FindServer(order.server);
  if (!found.ok()) return outputs_.push_back(CallAnswer{found.status()});
  Server& server = **found;
  const std::string name = absl::StrCat("server ", server.number, " (", server.name, ")");
  absl::Status status;
  if (server.is_stand_in) {
    status = absl::FailedPreconditionError(absl::StrCat(
        name, " is a backup in the process of another server: drain that one"));
  } else if (server.name == options_.own_server) {
    status = absl::FailedPreconditionError(absl::StrCat(
        name, " is in the coordinator's process, which all jobs need: end that itself"));
  } else if (!server.IsLeaving() && !order.force) {
    status = CheckDrain(server);
  }
  outputs_.push_back(
      CallAnswer{.status = status, .server = server.number, .server_name = server.name});
  if (!status.ok() || server.IsLeaving()) return;
  server.is_to_end = true;
  outputs_.push_back(ToMember{server.connection, EndServer{}});
  SayOfServers(absl::StrCat(name, " is told to end by an operator"));
}

}  // namespace syncline
