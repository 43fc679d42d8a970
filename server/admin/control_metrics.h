// Metrics of the control plane, for Prometheus:
//
//   syncline_auth_refused_total{door="control",reason}  peers that were refused
//   syncline_audit_lines_lost_total                     lines that the audit log lost
//   syncline_coordinator_leads                          whether this coordinator leads
//   syncline_checkpoint_store_available                 also on servers
//
// metrics.h has the refusals of the data plane.
//
// Thread safety: any thread.
#pragma once

#include <array>

namespace prometheus {
class Counter;
class Gauge;
class Registry;
}  // namespace prometheus

namespace syncline {

enum class ControlRefusal {
  kHandshake,  // no TLS, or a certificate that the coordinator does not trust
  kNoRole,     // a certificate without a role here
  kRole,       // the role does not permit this
  kStreams,    // too many streams use this certificate
  kLocalUser,  // without TLS: another user of this host
  kCrowded,    // closed to make room: too many were not admitted yet
};

// Returns the gauge. 1: this coordinator leads, or is the only one. 0: it is a standby.
// The registry owns it.
prometheus::Gauge& CoordinatorLeads(prometheus::Registry& registry);

// Returns the gauge. 1: checkpoints can be read and written. 0: their store is
// unreachable. The registry owns it.
prometheus::Gauge& CheckpointStoreAvailable(prometheus::Registry& registry);

class ControlMetrics {
 public:
  explicit ControlMetrics(prometheus::Registry& registry);

  void CountTurnedAway(ControlRefusal refusal);
  void CountLostAuditLine();

 private:
  static constexpr std::array<const char*, 6> kReasons = {
      "handshake", "no_role", "role", "streams", "local_user", "crowded"};

  // By ControlRefusal. The registry owns the counters.
  std::array<prometheus::Counter*, kReasons.size()> counters_;
  prometheus::Counter* lost_audit_lines_;  // owned by the registry
};

}  // namespace syncline
