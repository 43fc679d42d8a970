#include "cli/drain.h"

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/flags.h"
#include "cli/local_runs.h"
#include "comm/base/env.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/rpc/coordinator_call.h"
#include "comm/rpc/status_json.h"
#include "nlohmann/json.hpp"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kTimeout = absl::Seconds(10);
constexpr absl::Duration kAskEvery = absl::Milliseconds(200);

struct DrainFlags {
  std::string server;
  bool force = false;
  std::string wait = "10m";
  std::string coordinator;
  TlsOptions tls;
};

absl::StatusOr<v1::DrainServerReply> TellToEnd(const DrainFlags& flags) {
  SYNCLINE_ASSIGN_OR_RETURN(
      const CoordinatorCaller coordinator,
      CoordinatorCaller::Connect(flags.coordinator, flags.tls, kTimeout));
  v1::DrainServerRequest request;
  request.set_server(flags.server);
  request.set_force(flags.force);
  return coordinator.Call(&v1::Coordinator::Stub::DrainServer, request, kTimeout);
}

// Compares by name too, because a restarted coordinator may number servers differently.
bool IsThere(const Json& status, const v1::DrainServerReply& told) {
  for (const Json& server : status.value("servers", Json::array())) {
    const bool has_number = server.value("server", uint32_t{0}) == told.server();
    if (has_number || server.value("name", "") == told.name()) return true;
  }
  return false;
}

// Returns false if the coordinator was started after the drain order and servers may not
// have returned to it yet. `asked_at`: time of the question, counted from the order.
bool KnowsAllServers(const Json& status, const v1::DrainServerReply& told,
                     absl::Duration asked_at) {
  const double uptime = status.value("uptime_seconds", 0.0);
  return uptime > absl::ToDoubleSeconds(asked_at) || uptime >= told.return_seconds();
}

// Describes the backups that are to be made, for which a draining server waits.
std::string WhatIsMissing(const Json& status) {
  std::vector<std::string> missing;
  for (const Json& job : status.value("jobs", Json::array())) {
    const std::string phase = job.value("phase", "");
    if (phase == "over" || phase == "failed") continue;
    for (const Json& backup : job.value("backups", Json::array())) {
      const std::string next = backup.value("next", "");
      if (next.empty()) continue;
      missing.push_back(
          absl::StrCat("job '", Printable(job.value("name", "")), "': server ",
                       backup.value("server", 0),
                       backup.value("lost", "").empty()
                           ? " keeps its backup until another one is whole: "
                           : " has no backup, and ",
                       Printable(next)));
    }
  }
  return absl::StrJoin(missing, "; ");
}

// Returns whether the coordinator is away, or went away during the call. Waiting helps in
// both cases.
bool IsAway(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

// Returns null if the coordinator is away.
absl::StatusOr<Json> AskStatus(const DrainFlags& flags) {
  const absl::StatusOr<std::string> text =
      FetchStatusJson(flags.coordinator, flags.tls, kTimeout);
  if (IsAway(text.status())) return Json();
  SYNCLINE_RETURN_IF_ERROR(text.status());
  Json status = Json::parse(*text, nullptr, false);
  if (!status.is_object()) return absl::InternalError("a status that is not JSON");
  return status;
}

absl::StatusOr<int> Drain(const DrainFlags& flags) {
  if (flags.server.empty()) {
    return WithFailure(
        absl::InvalidArgumentError(
            "drain needs the name or number of a server, as syncline status shows it"),
        Failure::kUsage);
  }
  SYNCLINE_ASSIGN_OR_RETURN(const absl::Duration wait,
                            ParseDurationFlag("--wait", flags.wait));
  if (wait < absl::ZeroDuration()) {
    return WithFailure(absl::InvalidArgumentError("--wait must not be negative"),
                       Failure::kUsage);
  }
  SYNCLINE_ASSIGN_OR_RETURN(const v1::DrainServerReply told, TellToEnd(flags));
  const std::string server =
      absl::StrCat("server ", told.server(), " (", Printable(told.name()), ")");
  std::cout << server << " was told to stop" << std::endl;
  std::string missing;
  for (const SteadyClock clock; clock.Now() < wait; absl::SleepFor(kAskEvery)) {
    const absl::Duration asked_at = clock.Now();
    SYNCLINE_ASSIGN_OR_RETURN(const Json status, AskStatus(flags));
    if (!status.is_object()) continue;
    if (!IsThere(status, told) && KnowsAllServers(status, told, asked_at)) {
      std::cout << server << " has ended" << std::endl;
      return kExitDone;
    }
    const std::string now = WhatIsMissing(status);
    if (!now.empty() && now != missing) std::cout << "waits: " << now << std::endl;
    missing = now;
  }
  return absl::DeadlineExceededError(
      absl::StrCat(server, " has not ended after ", absl::FormatDuration(wait),
                   missing.empty() ? "" : absl::StrCat(": ", missing),
                   "; it will, at the latest after its --drain-timeout"));
}

}  // namespace

void AddDrain(CLI::App& app, Command* selected) {
  auto flags = std::make_shared<DrainFlags>();
  CLI::App* drain = app.add_subcommand(
      "drain", "Stop a server once other servers have what jobs need from it");
  drain->add_option("server", flags->server,
                    "Name or number of the server, as status shows it");
  drain->add_flag("--force", flags->force,
                  "Stop it even if a job would fail or stand still");
  drain->add_option("--wait", flags->wait, "How long to wait until it has ended")
      ->capture_default_str();
  AddCoordinatorFlag(*drain, &flags->coordinator);
  AddTlsFlags(*drain, &flags->tls);
  drain->callback([=] { *selected = [flags] { return Asking(*flags, Drain); }; });
}

}  // namespace syncline
