// Whom the coordinator turned away, for Prometheus:
// syncline_auth_refused_total{door="control",reason}. The data plane's door is in
// metrics.h. What the audit log lost: syncline_audit_lines_lost_total. And whether this
// coordinator is the one that decides: syncline_coordinator_leads.
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
  kHandshake,  // no TLS, or a certificate that the coordinator does not believe
  kNoRole,     // one that names no role here
  kRole,       // one whose role may not do that
  kStreams,    // one that has as many streams as a certificate may have
  kLocalUser,  // without TLS: another user of this host
  kCrowded,    // too many that had not been let in yet: one made room
};

// 1: this coordinator leads, or is the only one; 0: it is a standby. Of the registry.
prometheus::Gauge& CoordinatorLeads(prometheus::Registry& registry);

class ControlMetrics {
 public:
  explicit ControlMetrics(prometheus::Registry& registry);

  void CountTurnedAway(ControlRefusal refusal);
  void CountLostAuditLine();

 private:
  static constexpr std::array<const char*, 6> kReasons = {
      "handshake", "no_role", "role", "streams", "local_user", "crowded"};

  // By ControlRefusal; of the registry.
  std::array<prometheus::Counter*, kReasons.size()> counters_;
  prometheus::Counter* lost_audit_lines_;  // of the registry
};

}  // namespace syncline
