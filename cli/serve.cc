#include "cli/serve.h"

#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cli/audit_log.h"
#include "cli/checkpoint_store.h"
#include "cli/serve_flags.h"
#include "cli/serve_options.h"
#include "cli/standby.h"
#include "cli/stop_signal.h"
#include "comm/base/env.h"
#include "comm/base/failure.h"
#include "comm/base/host_name.h"
#include "comm/base/machine.h"
#include "comm/base/process_limits.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"
#include "comm/rpc/crowded_log.h"
#include "comm/rpc/event_json.h"
#include "comm/rpc/handshake_log.h"
#include "comm/rpc/server.h"
#include "comm/rpc/status_json.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"
#include "server/admin/admin_server.h"
#include "server/admin/advisor.h"
#include "server/admin/control_metrics.h"
#include "server/admin/history.h"
#include "server/admin/job_metrics.h"
#include "server/admin/metrics.h"
#include "server/checkpoint/s3/settings.h"
#include "server/service/coordinator_service.h"
#include "server/service/server_node.h"
#include "server/store/sqlite_store.h"

namespace syncline {
namespace {

// Time to wait for the first answer of a bucket. It usually takes less than a second. A
// launcher waits longer than this for its services.
constexpr absl::Duration kFirstLook = absl::Seconds(10);
// Shorter than the coordinator's patience: a server only reads what the coordinator has
// found in the bucket before. Jobs wait in the coordinator.
constexpr absl::Duration kServersPatience = absl::Minutes(2);

class Services {
 public:
  // `lead`: set if this coordinator is one of several; otherwise null. It must outlive
  // the services.
  Services(ServePlan plan, StopSignal& stop, Standby* lead)
      : plan_(std::move(plan)),
        stop_(stop),
        lead_(lead),
        log_(Logger::Create(plan_.log)),
        metrics_(registry_) {}

  absl::Status Start();
  void UpdateMetrics();
  void Drain(int signal);
  void Stop();

 private:
  absl::Status OpenCheckpoints();
  absl::Status OpenAuditLog();
  absl::Status StartCoordinator();
  absl::Status StartAdmin();
  absl::Status StartServer();
  void SayWhoMayReadTheAdminPort() const;
  void WarnOfKeysInTheClear(DataPlaneMode mode) const;
  // Returns the name by which the coordinator and users know this server.
  std::string ServerName() const;
  // Prints that this process is ready: once, and again when the server's number changes.
  // `server`: its number; nullopt for a coordinator alone.
  void SayReady(std::optional<uint32_t> server);
  std::vector<std::string> NotReadyBecause() const;

  const ServePlan plan_;
  StopSignal& stop_;
  Standby* const lead_;
  const Logger log_;
  // Number of refused handshakes, guarded by the lock of refused_handshakes_.
  uint64_t handshakes_ = 0;
  prometheus::Registry registry_;
  ControlMetrics control_metrics_{registry_};
  std::unique_ptr<AuditLog> audit_log_;
  Logger audit_;
  std::optional<RefusedHandshakes> refused_handshakes_;  // of the coordinator
  std::optional<CrowdedLog> crowded_;                    // of the coordinator
  Metrics metrics_;
  std::string control_;  // the coordinator's address for this process and its users
  std::optional<std::string> reachable_;  // its address for other hosts, if different
  std::unique_ptr<StateStore> store_;
  std::stop_source ends_;                   // requested by Stop: retries end soon
  std::unique_ptr<BlobStore> checkpoints_;  // null: no checkpoints
  std::unique_ptr<CoordinatorService> coordinator_;
  RunningServer control_server_;
  Advisor advisor_;  // used by the thread that makes admin pages
  const SteadyClock uptime_;
  History history_;  // of the coordinator's jobs
  std::unique_ptr<AdminServer> admin_;
  std::unique_ptr<ServerNode> node_;
  std::atomic<const ServerNode*> node_for_admin_ = nullptr;
  absl::Mutex ready_mutex_;
  bool said_ready_ ABSL_GUARDED_BY(ready_mutex_) = false;
  std::optional<uint32_t> said_server_ ABSL_GUARDED_BY(ready_mutex_);
  std::optional<JobMetrics> job_metrics_;         // only in a coordinator
  std::map<uint32_t, std::set<uint32_t>> ranks_;  // ranks that have metrics, by job
};

absl::Status Services::Start() {
  control_ = plan_.coordinator;
  SYNCLINE_RETURN_IF_ERROR(OpenCheckpoints());
  if (!plan_.journal_dir.empty()) {
    SYNCLINE_RETURN_IF_ERROR(CheckJournalDir(plan_.journal_dir));
  }
  SYNCLINE_RETURN_IF_ERROR(OpenAuditLog());
  if (plan_.has_coordinator) SYNCLINE_RETURN_IF_ERROR(StartCoordinator());
  SYNCLINE_RETURN_IF_ERROR(StartAdmin());
  if (plan_.has_server) return StartServer();
  SayReady(std::nullopt);
  return absl::OkStatus();
}

// Fails if the bucket refuses access. If it does not answer, the service starts all the
// same, and jobs that need the bucket wait for it.
absl::Status Services::OpenCheckpoints() {
  if (plan_.checkpoint_dir.empty()) return absl::OkStatus();
  prometheus::Gauge& available = CheckpointStoreAvailable(registry_);
  if (!IsS3Location(plan_.checkpoint_dir)) {
    SYNCLINE_ASSIGN_OR_RETURN(checkpoints_, OpenCheckpointStore(plan_.checkpoint_dir));
    available.Set(1);
    log_.Info("checkpoints can be written", {{"where", checkpoints_->Describe()}});
    return absl::OkStatus();
  }
  const auto on_change = [this, &available](const std::string& where,
                                            const absl::Status& status) {
    available.Set(status.ok() ? 1 : 0);
    if (status.ok()) return log_.Info("checkpoints can be written", {{"where", where}});
    log_.Warning(
        "checkpoints can neither be read nor written; jobs that may have some wait, and "
        "the bucket is asked until it answers",
        {{"error", std::string(status.message())}});
  };
  SYNCLINE_ASSIGN_OR_RETURN(
      auto bucket,
      AwaitCheckpointStore(
          plan_.checkpoint_dir,
          {.hurry = ends_.get_token(),
           .patience = plan_.has_coordinator ? absl::ZeroDuration() : kServersPatience,
           .on_change = on_change}));
  const std::optional<absl::Status> first =
      bucket->AwaitFirst(kFirstLook, [this] { return stop_.IsPending(); });
  checkpoints_ = std::move(bucket);
  if (!first) {
    log_.Warning("checkpoints can neither be read nor written yet: no answer",
                 {{"where", checkpoints_->Describe()}});
    return absl::OkStatus();
  }
  return absl::IsUnavailable(*first) ? absl::OkStatus() : *first;
}

absl::Status Services::OpenAuditLog() {
  if (plan_.audit_log.empty()) return absl::OkStatus();
  AuditLogEvents events;
  events.on_lost = [this] { control_metrics_.CountLostAuditLine(); };
  events.on_change = [this](const std::string& reason, uint64_t lost) {
    if (reason.empty()) {
      return log_.Info("the audit log is written again", {{"lost", lost}});
    }
    log_.Error("lines of the audit log are lost",
               {{"file", plan_.audit_log}, {"reason", reason}});
  };
  SYNCLINE_ASSIGN_OR_RETURN(audit_log_,
                            AuditLog::Open(plan_.audit_log, std::move(events)));
  audit_ = audit_log_->logger();
  audit_.Info("started", {{"listen", plan_.listen},
                          {"tls", plan_.tls.HasTls() ? "mutual" : "none"}});
  return absl::OkStatus();
}

absl::Status Services::StartCoordinator() {
  if (lead_ == nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(store_, OpenSqliteStore(plan_.state_dir, log_));
  }
  CoordinatorServiceOptions options;
  options.coordinator = {.timeouts = plan_.timeouts,
                         .expected_servers = plan_.servers,
                         .patience = plan_.patience,
                         .own_server = plan_.has_server ? ServerName() : "",
                         .spreads_shares = plan_.spreads_shares};
  options.store = lead_ != nullptr ? &lead_->store() : store_.get();
  if (lead_ != nullptr) options.leads = [this] { return lead_->leads(); };
  options.comes_back = !plan_.has_server;
  options.checkpoints = checkpoints_.get();
  options.tls = plan_.tls;
  options.revoked_file = plan_.revoked;
  options.streams_per_certificate = plan_.streams_per_certificate;
  options.audit = audit_;
  options.metrics = &control_metrics_;
  options.log = log_.With({{"role", "coordinator"}});
  options.on_fatal = [this](const absl::Status& status) { stop_.Fail(status); };
  SYNCLINE_ASSIGN_OR_RETURN(coordinator_, CoordinatorService::Create(std::move(options)));
  if (lead_ != nullptr) {
    lead_->OnLost([this](const absl::Status& why) { coordinator_->StepDown(why); });
  }
  ServerOptions server = {.listen = plan_.listen,
                          .tls = plan_.tls,
                          .timeouts = RpcTimeouts::From(plan_.timeouts),
                          .services = {coordinator_.get()},
                          .log = log_};
  crowded_.emplace(log_, audit_);
  server.on_crowded = [this](const std::string& source) {
    control_metrics_.CountTurnedAway(ControlRefusal::kCrowded);
    crowded_->Say(source);
  };
  refused_handshakes_.emplace(log_, [this](const std::string& reason) {
    control_metrics_.CountTurnedAway(ControlRefusal::kHandshake);
    if (std::has_single_bit(++handshakes_)) {
      audit_.Warning(
          "refused",
          {{"what", "a handshake"}, {"reason", reason}, {"refused", handshakes_}});
    }
  });
  server.on_listening = [this](const RunningServer& running) {
    coordinator_->ServesAt(running.address, running.door);
  };
  SYNCLINE_ASSIGN_OR_RETURN(control_server_, syncline::StartServer(server));
  control_ = plan_.advertise.empty() ? ReachableAddress(control_server_.address)
                                     : plan_.advertise;
  if (plan_.advertise.empty()) reachable_ = AddressForOthers(control_server_.address);
  return absl::OkStatus();
}

absl::Status Services::StartAdmin() {
  AdminPages pages;
  pages.not_ready_because = [this] { return NotReadyBecause(); };
  pages.refresh_metrics = [this] {
    metrics_.Refresh();
    if (!plan_.has_coordinator) return;
    CoordinatorLeads(registry_).Set(lead_ == nullptr || lead_->leads() ? 1 : 0);
  };
  if (coordinator_ != nullptr) {
    job_metrics_.emplace(registry_);
    pages.status_json = [this] { return StatusAsJson(coordinator_->StatusNow()); };
    pages.events_json = [this] { return EventsAsJson(coordinator_->EventsNow()); };
    pages.history = &history_;
    pages.advice_json = [this] {
      // A status that cannot be parsed is a bug. The page then shows no advice.
      const absl::Status added =
          advisor_.Add(StatusAsJson(coordinator_->StatusNow()), uptime_.Now());
      return added.ok() ? advisor_.AllJson() : std::string("{}");
    };
  }
  const std::string title = !plan_.has_server        ? "coordinator"
                            : !plan_.has_coordinator ? "server"
                                                     : "coordinator and server";
  admin_ =
      std::make_unique<AdminServer>(AdminOptions{.listen = plan_.admin_listen,
                                                 .title = title,
                                                 .seals = plan_.admin_seals,
                                                 .tls = plan_.tls,
                                                 .token_file = plan_.admin_token_file,
                                                 .log = log_,
                                                 .audit = audit_},
                                    registry_, std::move(pages));
  const absl::Status started = admin_->Start();
  if (started.ok()) SayWhoMayReadTheAdminPort();
  if (FailureOf(started) != Failure::kPortInUse) return started;
  return WithFailure(
      absl::UnavailableError(absl::StrCat(started.message(),
                                          " with --admin-listen: each service of a host "
                                          "needs its own, such as 127.0.0.1:7072")),
      Failure::kPortInUse);
}

void Services::SayWhoMayReadTheAdminPort() const {
  const auto listened = ParseHostPort(admin_->address());
  const bool is_here = listened.ok() && IsLoopback(listened->host);
  const bool has_token = !plan_.admin_token_file.empty();
  if (is_here || (plan_.admin_seals && has_token)) return;
  if (plan_.admin_seals) {
    return log_.Warning(
        "anyone who can reach the admin port may read it: give --admin-token-file, "
        "unless everyone on this network may",
        {{"admin", admin_->address()}});
  }
  log_.Warning(has_token
                   ? "the admin port speaks plain text: its token travels in the clear"
                   : "the admin port speaks plain text, and answers anyone",
               {{"admin", admin_->address()}});
}

void Services::WarnOfKeysInTheClear(DataPlaneMode mode) const {
  const bool seals = mode == DataPlaneMode::kAuto || mode == DataPlaneMode::kTls;
  const auto control = ParseHostPort(control_.substr(0, control_.find(',')));
  const bool is_here = control.ok() && IsLoopback(control->host);
  if (!seals || plan_.tls.HasTls() || is_here) return;
  log_.Warning(
      "the keys of the data plane travel in the clear, because the control plane has no "
      "TLS; give --tls-cert, --tls-key and --tls-ca, unless you trust everyone on this "
      "network");
}

std::string Services::ServerName() const {
  return plan_.advertise.empty() ? ProcessName() : plan_.advertise;
}

absl::Status Services::StartServer() {
  DataPlanePlan data_plane = plan_.data_plane;
  SYNCLINE_RETURN_IF_ERROR(
      FindDataPlaneHost(plan_.data_plane_address, control_, data_plane));
  log_.Info(absl::StrCat("data plane: ", std::string(DescribeMode(data_plane.mode))),
            {{"address", data_plane.advertised_host.empty() ? data_plane.listen_host
                                                            : data_plane.advertised_host},
             {"because", data_plane.because}});
  WarnOfKeysInTheClear(data_plane.mode);
  const ServerNodeOptions options = {
      .coordinator = control_,
      .name = ServerName(),
      .engines = plan_.engines,
      .memory_bytes = plan_.memory_bytes,
      .plan = data_plane,
      .timeouts = plan_.timeouts,
      .tls = plan_.tls,
      .log = log_.With({{"role", "server"}}),
      .audit = audit_,
      .metrics = &metrics_,
      .checkpoints = checkpoints_.get(),
      .journal_directory = plan_.journal_dir,
      .journal_snapshot_factor = plan_.journal_snapshot_factor,
      .patience = plan_.patience};
  ServerNodeEvents events;
  events.on_attached = [this](uint32_t server) { SayReady(server); };
  events.on_given_up = [this](const absl::Status& status) { stop_.Fail(status); };
  events.on_told_to_end = [this] {
    log_.Info("an operator stops this server (syncline drain)");
    StopSignal::End();
  };
  SYNCLINE_ASSIGN_OR_RETURN(node_, ServerNode::Start(options, std::move(events)));
  node_for_admin_ = node_.get();
  return absl::OkStatus();
}

void Services::SayReady(std::optional<uint32_t> server) {
  absl::MutexLock lock(&ready_mutex_);
  if (std::exchange(said_ready_, true) && said_server_ == server) return;
  said_server_ = server;
  std::cout << "syncline: ready control=" << control_ << " admin=" << admin_->address();
  if (reachable_) std::cout << " reachable=" << *reachable_;
  if (server) std::cout << " server=" << *server;
  std::cout << std::endl;
}

std::vector<std::string> Services::NotReadyBecause() const {
  if (!plan_.has_server) return {};
  const ServerNode* node = node_for_admin_;
  if (node != nullptr && node->is_attached()) return {};
  return {absl::StrCat("waiting for coordinator at ", control_)};
}

void Services::UpdateMetrics() {
  admin_->LookAgain();
  if (coordinator_ == nullptr) return;
  std::map<uint32_t, std::set<uint32_t>> before = std::move(ranks_);
  ranks_.clear();
  const CoordinatorView view = coordinator_->View();
  history_.Add(view);
  job_metrics_->Show(view);
  for (const JobView& job : view.jobs) {
    if (job.IsOver()) continue;
    metrics_.NameJob(job.job, job.name);
    metrics_.SetEpoch(job.job, job.epoch);
    metrics_.SetMembers(job.job, job.members.size());
    metrics_.SetStep(job.job, job.step);
    if (!job.backups.empty()) {
      metrics_.SetBackupsMissing(
          job.job, std::ranges::count_if(job.backups, [](const BackupView& backup) {
            return !backup.lost.empty();
          }));
    }
    for (const auto& [cause, sums] : job.recoveries.sums) {
      metrics_.SetRecoveries(job.job, cause, sums.count, sums.took);
    }
    const CheckpointView& saved = job.checkpoint;
    if (checkpoints_ != nullptr) {
      metrics_.SetCheckpoint(job.job, {.is_there = saved.written > 0,
                                       .step = saved.step,
                                       .bytes = saved.bytes,
                                       .took = saved.took,
                                       .age = saved.age});
    }
    std::set<uint32_t>& ranks = ranks_[job.job];
    std::set<uint32_t> gone = std::move(before[job.job]);
    before.erase(job.job);
    for (const MemberView& member : job.members) {
      const CompressionFigures& figures = member.compression;
      metrics_.SetWorker(job.job, member.rank,
                         {.heartbeat_age = member.heartbeat_age,
                          .compression = figures.ratio(),
                          .encode_ns = figures.encode_ns,
                          .decode_ns = figures.decode_ns,
                          .residual_ratio = figures.residual_ratio,
                          .diverged_blocks = static_cast<double>(figures.diverged_blocks),
                          .left_out_steps = static_cast<double>(member.left_out),
                          .window_fill = member.window_fill,
                          .phases = member.phases});
      ranks.insert(member.rank);
      gone.erase(member.rank);
    }
    for (const uint32_t rank : gone) metrics_.ForgetWorker(job.job, rank);
  }
  for (const auto& [job, ranks] : before) metrics_.ForgetJob(job);
}

// SIGINT, or a second signal, ends the server without draining.
void Services::Drain(int signal) {
  if (node_ == nullptr || plan_.has_coordinator || signal != SIGTERM) return;
  node_->Drain();
  if (node_->has_drained()) return;
  log_.Info("waits until other servers have what it has",
            {{"limit", absl::FormatDuration(plan_.drain_timeout)}});
  stop_.WaitFor([this] { return node_->has_drained(); }, plan_.drain_timeout);
}

void Services::Stop() {
  stop_.LeaveTheNextToTheSystem();
  node_for_admin_ = nullptr;
  ends_.request_stop();
  if (node_ != nullptr) node_->Stop();
  if (coordinator_ != nullptr) coordinator_->Stop();
  if (control_server_.server != nullptr) {
    control_server_.Shutdown(plan_.timeouts.shutdown_grace);
  }
}

absl::StatusOr<int> Serve(const ServeFlags& flags) {
  const auto environment = [](const char* name) { return std::getenv(name); };
  SYNCLINE_ASSIGN_OR_RETURN(ServePlan plan,
                            MakeServePlan(flags, DescribeMachine().cores, environment));
  if (plan.memory_bytes == 0) plan.memory_bytes = MemoryForJobs(ReadProcessLimits());
  StopSignal stop;
  RaiseFileLimit();
  std::unique_ptr<Standby> standby;
  if (plan.etcd) {
    SYNCLINE_ASSIGN_OR_RETURN(
        standby,
        Standby::Start(plan, Logger::Create(plan.log).With({{"role", "coordinator"}}),
                       stop));
    SYNCLINE_ASSIGN_OR_RETURN(const int ended_by, standby->WaitForLead());
    if (ended_by != 0) return 128 + ended_by;
    plan.listen = standby->listen();
    plan.admin_listen = standby->admin_listen();
  }
  Services services(std::move(plan), stop, standby.get());
  absl::StatusOr<int> signal = 0;
  if (const absl::Status started = services.Start(); started.ok()) {
    signal = stop.Wait([&] { services.UpdateMetrics(); });
    if (signal.ok()) services.Drain(*signal);
  } else {
    signal = started;
  }
  if (standby != nullptr) standby->EndSoon();
  services.Stop();
  if (standby != nullptr) standby->Resign();
  SYNCLINE_RETURN_IF_ERROR(signal.status());
  return 128 + *signal;
}

}  // namespace

void AddServe(CLI::App& app, Command* selected) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* serve = app.add_subcommand("serve", "Run the long-running services");
  AddServeFlags(*serve, *flags);
  serve->callback([=] { *selected = [flags] { return Serve(*flags); }; });
}

}  // namespace syncline
