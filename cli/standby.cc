#include "cli/standby.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/env.h"
#include "comm/base/status.h"
#include "comm/rpc/timeouts.h"
#include "grpcpp/health_check_service_interface.h"
#include "prometheus/gauge.h"
#include "server/admin/control_metrics.h"

namespace syncline {
namespace {

// Limit of one call to a member of etcd. Several must fit into a lease.
constexpr absl::Duration kAttempt = absl::Seconds(1);
// Interval of looking for a new certificate and token of the admin port.
constexpr absl::Duration kLookAgainEvery = absl::Seconds(1);
constexpr absl::Duration kLongestLook = absl::Milliseconds(500);
// Time that a coordinator which ends has for its last writes.
constexpr absl::Duration kLastWrites = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<Standby>> Standby::Start(const ServePlan& plan,
                                                        const Logger& log,
                                                        StopSignal& stop) {
  std::unique_ptr<Standby> self(new Standby(plan, log, stop));
  SYNCLINE_ASSIGN_OR_RETURN(self->etcd_,
                            EtcdClient::Create(*plan.etcd, plan.etcd_tls, kAttempt));
  SYNCLINE_RETURN_IF_ERROR(self->StartServing());
  return self;
}

Standby::~Standby() { Resign(); }

absl::Status Standby::StartServing() {
  service_ = std::make_unique<StandbyService>([this] {
    const Leadership* leadership = leadership_for_others_;
    return leadership == nullptr ? "" : leadership->leader();
  });
  ServerOptions server = {.listen = plan_.listen,
                          .tls = plan_.tls,
                          .timeouts = RpcTimeouts::From(plan_.timeouts),
                          .services = {service_.get()},
                          .log = log_};
  server.on_crowded = [this](const std::string& source) {
    metrics_.CountTurnedAway(ControlRefusal::kCrowded);
    crowded_.Say(source);
  };
  SYNCLINE_ASSIGN_OR_RETURN(running_, StartServer(server));
  // Clients that look for the leader ask for this health status (comm/rpc/channel.h).
  running_.server->GetHealthCheckService()->SetServingStatus(false);
  listen_ = running_.address;
  CoordinatorLeads(registry_).Set(0);
  AdminPages pages;
  pages.not_ready_because = [this] { return NotReadyBecause(); };
  admin_ =
      std::make_unique<AdminServer>(AdminOptions{.listen = plan_.admin_listen,
                                                 .title = "standby coordinator",
                                                 .seals = plan_.admin_seals,
                                                 .tls = plan_.tls,
                                                 .token_file = plan_.admin_token_file,
                                                 .log = log_},
                                    registry_, std::move(pages));
  SYNCLINE_RETURN_IF_ERROR(admin_->Start());
  admin_listen_ = admin_->address();
  LeadershipOptions options;
  options.address = !plan_.advertise.empty()
                        ? plan_.advertise
                        : AddressForOthers(listen_).value_or(ReachableAddress(listen_));
  options.ttl = Leadership::TtlFor(plan_.timeouts);
  options.look_every = std::min(plan_.timeouts.dial_slot, kLongestLook);
  options.log = log_;
  options.on_lost = [this](const absl::Status& why) { Lost(why); };
  std::cout << "syncline: standby control=" << ReachableAddress(listen_)
            << " admin=" << admin_listen_ << std::endl;
  leadership_ = std::make_unique<Leadership>(*etcd_, std::move(options));
  leadership_for_others_ = leadership_.get();
  return absl::OkStatus();
}

std::vector<std::string> Standby::NotReadyBecause() const {
  const Leadership* leadership = leadership_for_others_;
  const absl::Status status = leadership == nullptr
                                  ? absl::UnavailableError("no request was sent yet")
                                  : leadership->etcd_status();
  if (status.ok()) return {};
  return {absl::StrCat("etcd does not answer: ", std::string(status.message()))};
}

absl::StatusOr<int> Standby::WaitForLead() {
  const SteadyClock clock;
  absl::Duration look_at = kLookAgainEvery;
  SYNCLINE_ASSIGN_OR_RETURN(const int signal, stop_.WaitUntil([&] {
    if (clock.Now() >= look_at) {
      admin_->LookAgain();
      look_at = clock.Now() + kLookAgainEvery;
    }
    return leadership_->leads();
  }));
  admin_.reset();
  running_.Shutdown(plan_.timeouts.shutdown_grace);
  running_ = {};
  if (signal != 0) return signal;
  EtcdStoreOptions options;
  options.guard = leadership_->guard();
  options.time_left = [this] {
    // This may run on the thread that waits for signals, so it has to look for them
    // itself.
    if (stop_.IsPending()) EndSoon();
    return leadership_->time_left();
  };
  store_ = std::make_unique<EtcdStore>(*etcd_, std::move(options));
  return 0;
}

void Standby::Lost(const absl::Status& why) {
  std::function<void(const absl::Status&)> tell;
  {
    absl::MutexLock lock(&mutex_);
    lost_ = why;
    tell = on_lost_;
  }
  if (tell) return tell(why);
  stop_.Fail(why);
}

void Standby::OnLost(std::function<void(const absl::Status&)> on_lost) {
  absl::Status lost;
  {
    absl::MutexLock lock(&mutex_);
    if (lost_.ok()) {
      on_lost_ = std::move(on_lost);
      return;
    }
    lost = lost_;
  }
  on_lost(lost);
}

void Standby::EndSoon() { leadership_->EndWithin(kLastWrites); }

void Standby::Resign() {
  if (leadership_ != nullptr) leadership_->Resign();
}

}  // namespace syncline
