// One of several coordinators that keep their state in etcd. It starts as a standby,
// which tells clients which coordinator leads, and later may lead itself.
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto standby, Standby::Start(plan, log, stop));
//   SYNCLINE_ASSIGN_OR_RETURN(const int signal, standby->WaitForLead());
//   if (signal == 0) { ... standby->store() ...; standby->Resign(); }
//
// Used by the thread that waits for signals.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cli/serve_options.h"
#include "cli/stop_signal.h"
#include "comm/base/log.h"
#include "comm/rpc/crowded_log.h"
#include "comm/rpc/server.h"
#include "prometheus/registry.h"
#include "server/admin/admin_server.h"
#include "server/admin/control_metrics.h"
#include "server/etcd/etcd_client.h"
#include "server/etcd/etcd_store.h"
#include "server/etcd/leadership.h"
#include "server/service/standby_service.h"

namespace syncline {

class Standby {
 public:
  // Starts to serve the plan's control and admin addresses, and prints
  //   syncline: standby control=HOST:PORT admin=HOST:PORT
  static absl::StatusOr<std::unique_ptr<Standby>> Start(const ServePlan& plan,
                                                        const Logger& log,
                                                        StopSignal& stop);
  ~Standby();  // calls Resign

  // Blocks until a signal arrives (returns it), or until this coordinator leads (returns
  // 0). In the latter case both ports are free again.
  absl::StatusOr<int> WaitForLead();

  // Addresses at which the standby was reached; the leader uses them again.
  const std::string& listen() const { return listen_; }
  const std::string& admin_listen() const { return admin_listen_; }

  // The leader's state store.
  StateStore& store() { return *store_; }
  bool leads() const { return leadership_->leads(); }
  // Sets a callback for the loss of leadership, called once, on another thread.
  void OnLost(std::function<void(const absl::Status&)> on_lost);

  // Limits the time for further requests to etcd, since this process ends.
  void EndSoon();
  // Gives up leadership so that the next coordinator can lead. Nothing may be stored
  // after this.
  void Resign();

 private:
  Standby(const ServePlan& plan, const Logger& log, StopSignal& stop)
      : plan_(plan), log_(log), stop_(stop) {}
  absl::Status StartServing();
  std::vector<std::string> NotReadyBecause() const;
  void Lost(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  const ServePlan plan_;
  const Logger log_;
  StopSignal& stop_;
  prometheus::Registry registry_;
  ControlMetrics metrics_{registry_};
  CrowdedLog crowded_{log_};
  std::string listen_;
  std::string admin_listen_;

  absl::Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const absl::Status&)> on_lost_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<EtcdClient> etcd_;
  std::unique_ptr<Leadership> leadership_;
  std::atomic<const Leadership*> leadership_for_others_ = nullptr;
  std::unique_ptr<EtcdStore> store_;
  std::unique_ptr<StandbyService> service_;
  std::unique_ptr<AdminServer> admin_;
  RunningServer running_;
};

}  // namespace syncline
