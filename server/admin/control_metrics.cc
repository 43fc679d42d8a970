#include "server/admin/control_metrics.h"

#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"

namespace syncline {

prometheus::Gauge& CoordinatorLeads(prometheus::Registry& registry) {
  return prometheus::BuildGauge()
      .Name("syncline_coordinator_leads")
      .Help("1 for the coordinator that leads, 0 for a standby.")
      .Register(registry)
      .Add({});
}

prometheus::Gauge& CheckpointStoreAvailable(prometheus::Registry& registry) {
  return prometheus::BuildGauge()
      .Name("syncline_checkpoint_store_available")
      .Help("1 while the place for checkpoints answers, 0 while it is away.")
      .Register(registry)
      .Add({});
}

ControlMetrics::ControlMetrics(prometheus::Registry& registry) {
  // The same family as for the data plane, whichever is created first.
  auto& family = prometheus::BuildCounter()
                     .Name("syncline_auth_refused_total")
                     .Help(
                         "Peers turned away before they had proved who they are, for "
                         "what they sent, or for their role.")
                     .Register(registry);
  for (size_t i = 0; i < counters_.size(); ++i) {
    counters_[i] = &family.Add({{"door", "control"}, {"reason", kReasons[i]}});
  }
  lost_audit_lines_ = &prometheus::BuildCounter()
                           .Name("syncline_audit_lines_lost_total")
                           .Help("Lines that the audit log could not take.")
                           .Register(registry)
                           .Add({});
}

void ControlMetrics::CountTurnedAway(ControlRefusal refusal) {
  counters_[static_cast<size_t>(refusal)]->Increment();
}

void ControlMetrics::CountLostAuditLine() { lost_audit_lines_->Increment(); }

}  // namespace syncline
