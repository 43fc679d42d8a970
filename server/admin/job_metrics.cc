#include "server/admin/job_metrics.h"

#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>
#include <string>

#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"
#include "server/admin/goal_metrics.h"
#include "server/admin/member_sum.h"
#include "server/admin/traffic_series.h"
#include "server/coordinator/reasons.h"

namespace syncline {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;

struct Figure {
  const char* name;
  const char* help;
  std::optional<double> (*value)(const JobView&);
};
using Viewed = const JobView&;
using Value = std::optional<double>;

constexpr Figure kGauges[] = {
    {"syncline_loss", "Loss of the latest step that workers reported.",
     [](Viewed job) { return job.loss; }},
    {"syncline_gradient_norm",
     "Norm of all gradients before clipping, of jobs that clip by it.",
     [](Viewed job) { return job.gradient_norm; }},
    {"syncline_learning_rate", "Learning rate of the present step.",
     [](Viewed job) -> Value { return job.learning_rate; }},
    {"syncline_loss_scale", "Loss scale of a job; 1 without loss scaling.",
     [](Viewed job) -> Value { return job.loss_scale; }},
    {"syncline_expected_workers", "Workers with which a job begins.",
     [](Viewed job) -> Value { return job.expected_workers; }},
    {"syncline_expected_servers", "Servers of a job.",
     [](Viewed job) -> Value { return job.expected_servers; }},
    {"syncline_attached_servers", "Servers of a job that are there.",
     [](Viewed job) -> Value { return job.attached_servers; }},
    {"syncline_participants", "Workers whose gradients are in a job's last step.",
     [](Viewed job) -> Value { return job.participants; }},
};

constexpr Figure kCounters[] = {
    {"syncline_skipped_steps_total",
     "Steps of a job that were skipped because they were not finite.",
     [](Viewed job) -> Value { return static_cast<double>(job.skipped_steps); }},
    {"syncline_rollbacks_total",
     "Times that a job began with fewer steps than its last run had made, which failed.",
     [](Viewed job) -> Value { return static_cast<double>(job.recoveries.rollbacks); }},
    {"syncline_moves_total",
     "Shares of a job that moved to another server from one that goes on.",
     [](Viewed job) -> Value { return static_cast<double>(job.moves); }},
    {"syncline_left_out_total", "Contributions that came after a quorum.",
     [](Viewed job) -> Value { return static_cast<double>(job.left_out); }},
};

constexpr std::array<EpochCause, 9> kCauses = {
    EpochCause::kBegin,  EpochCause::kJoin,        EpochCause::kLeave,
    EpochCause::kDeath,  EpochCause::kSettings,    EpochCause::kCheckpoint,
    EpochCause::kServer, EpochCause::kCoordinator, EpochCause::kAnswer};

// Returns the name of the codec of tensors for which no rule says otherwise, without its
// options: "topk" of "fp32@norm*;topk:ratio=0.01". A label has few values then.
std::string CodecName(const std::string& policy) {
  const size_t rules = policy.rfind(';');
  const std::string rest = rules == std::string::npos ? policy : policy.substr(rules + 1);
  return rest.substr(0, rest.find_first_of(":@"));
}

Family<Counter>& CounterFamily(prometheus::Registry& registry, const char* name,
                               const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

Family<Gauge>& GaugeFamily(prometheus::Registry& registry, const char* name,
                           const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

}  // namespace

struct JobMetrics::Families {
  explicit Families(prometheus::Registry& registry)
      : staleness(GaugeFamily(registry, "syncline_staleness_steps",
                              "Steps from a job's slowest member to its fastest.")),
        codec(GaugeFamily(registry, "syncline_codec_info",
                          "1, with the codecs of a job's gradients and weights.")),
        checkpoints(CounterFamily(registry, "syncline_checkpoints_total",
                                  "Checkpoints of this run, by result.")),
        epoch_changes(CounterFamily(registry, "syncline_epoch_changes_total",
                                    "Changes of a job's epoch, by cause.")),
        gradient_bytes(CounterFamily(
            registry, "syncline_gradient_bytes_total",
            "Bytes of gradients that workers pushed: in FP32, and on the wire.")),
        samples(CounterFamily(registry, "syncline_samples_total",
                              "Samples of the gradients that workers have pushed.")),
        pushes(CounterFamily(registry, "syncline_trainjob_pushes_total",
                             "Times that a launcher has pushed a job's progress to its "
                             "TrainJob, by result.")),
        goals(registry) {
    for (size_t i = 0; i < gauges.size(); ++i) {
      gauges[i] = &GaugeFamily(registry, kGauges[i].name, kGauges[i].help);
    }
    for (size_t i = 0; i < counters.size(); ++i) {
      counters[i] = &CounterFamily(registry, kCounters[i].name, kCounters[i].help);
    }
  }

  std::array<Family<Gauge>*, std::size(kGauges)> gauges = {};
  std::array<Family<Counter>*, std::size(kCounters)> counters = {};
  Family<Gauge>& staleness;
  Family<Gauge>& codec;
  Family<Counter>& checkpoints;
  Family<Counter>& epoch_changes;
  Family<Counter>& gradient_bytes;
  Family<Counter>& samples;
  Family<Counter>& pushes;
  GoalFamilies goals;
};

// The series of one job. They end with this object.
struct JobMetrics::Series {
  Series(Families& of, const JobView& job)
      : families(of), name(job.name), goals(of.goals, job.name) {
    for (size_t i = 0; i < counters.size(); ++i) {
      counters[i] = &families.counters[i]->Add(Labels());
    }
    const std::string mode = job.mode.substr(0, job.mode.find(':'));
    staleness = &families.staleness.Add(Labels("mode", mode));
    written = &families.checkpoints.Add(Labels("result", "written"));
    failed = &families.checkpoints.Add(Labels("result", "failed"));
    for (size_t i = 0; i < kCauses.size(); ++i) {
      const std::string cause(EpochCauseName(kCauses[i]));
      epoch_changes[i] = &families.epoch_changes.Add(Labels("cause", cause));
    }
    raw = &families.gradient_bytes.Add(Labels("form", "fp32"));
    wire = &families.gradient_bytes.Add(Labels("form", "wire"));
    samples = &families.samples.Add(Labels());
  }

  ~Series() {
    for (size_t i = 0; i < gauges.size(); ++i) {
      if (gauges[i] != nullptr) families.gauges[i]->Remove(gauges[i]);
    }
    for (size_t i = 0; i < counters.size(); ++i) {
      families.counters[i]->Remove(counters[i]);
    }
    families.staleness.Remove(staleness);
    if (codec != nullptr) families.codec.Remove(codec);
    for (Counter* one : {written, failed}) families.checkpoints.Remove(one);
    for (Counter* one : epoch_changes) families.epoch_changes.Remove(one);
    for (Counter* one : {raw, wire}) families.gradient_bytes.Remove(one);
    families.samples.Remove(samples);
    for (Counter* one : {pushed, push_failed}) {
      if (one != nullptr) families.pushes.Remove(one);
    }
  }
  Series(const Series&) = delete;
  Series& operator=(const Series&) = delete;

  prometheus::Labels Labels(const std::string& label = "",
                            const std::string& value = "") const {
    prometheus::Labels labels = {{"job_name", name}};
    if (!label.empty()) labels[label] = value;
    return labels;
  }

  // A job may change its codecs while it runs.
  void ShowCodec(const JobView& job) {
    prometheus::Labels labels = Labels("push", CodecName(job.push_codec));
    labels["publish"] = CodecName(job.publish_codec);
    if (labels == codec_labels) return;
    if (codec != nullptr) families.codec.Remove(codec);
    codec = &families.codec.Add(labels);
    codec->Set(1);
    codec_labels = labels;
  }

  void ShowPushes(const PushCounts& counts) {
    if (pushed == nullptr) pushed = &families.pushes.Add(Labels("result", "sent"));
    if (push_failed == nullptr) {
      push_failed = &families.pushes.Add(Labels("result", "failed"));
    }
    GrowTo(*pushed, static_cast<double>(counts.sent));
    GrowTo(*push_failed, static_cast<double>(counts.failed));
  }

  void Show(const JobView& job) {
    ShowCodec(job);
    if (job.pushes) ShowPushes(*job.pushes);
    for (size_t i = 0; i < gauges.size(); ++i) {
      const Value value = kGauges[i].value(job);
      if (!value) continue;
      if (gauges[i] == nullptr) gauges[i] = &families.gauges[i]->Add(Labels());
      gauges[i]->Set(*value);
    }
    for (size_t i = 0; i < counters.size(); ++i) {
      GrowTo(*counters[i], kCounters[i].value(job).value_or(0));
    }
    goals.Show(job);
    staleness->Set(static_cast<double>(job.staleness));
    GrowTo(*written, static_cast<double>(job.checkpoint.written));
    GrowTo(*failed, static_cast<double>(job.checkpoint.failed));
    for (size_t i = 0; i < kCauses.size(); ++i) {
      const auto count = job.epoch_changes.find(std::string(EpochCauseName(kCauses[i])));
      if (count == job.epoch_changes.end()) continue;
      GrowTo(*epoch_changes[i], static_cast<double>(count->second));
    }
    GrowTo(*raw, static_cast<double>(job.pushed.pushed_values) * sizeof(float));
    GrowTo(*wire, static_cast<double>(job.pushed.pushed_value_bytes));
    of_members.Add(job.members, &MemberView::samples);
    GrowTo(*samples, static_cast<double>(of_members.sum()));
  }

  Families& families;
  const std::string name;
  std::array<Gauge*, std::size(kGauges)> gauges = {};  // null: no value yet
  std::array<Counter*, std::size(kCounters)> counters = {};
  Gauge* staleness = nullptr;
  Gauge* codec = nullptr;
  prometheus::Labels codec_labels = {};
  Counter* written = nullptr;
  Counter* failed = nullptr;
  std::array<Counter*, kCauses.size()> epoch_changes = {};
  Counter* raw = nullptr;
  Counter* wire = nullptr;
  Counter* samples = nullptr;
  Counter* pushed = nullptr;  // null: nothing is pushed
  Counter* push_failed = nullptr;
  MemberSum of_members = {};
  GoalSeries goals;
};

JobMetrics::JobMetrics(prometheus::Registry& registry)
    : families_(std::make_unique<Families>(registry)) {}

JobMetrics::~JobMetrics() = default;

// Ends the series of jobs that are over first, because later jobs may have the same
// labels.
void JobMetrics::Show(const CoordinatorView& view) {
  std::set<uint32_t> live;
  for (const JobView& job : view.jobs) {
    if (!job.IsOver()) live.insert(job.job);
  }
  std::erase_if(jobs_, [&](const auto& entry) { return !live.contains(entry.first); });
  for (const JobView& job : view.jobs) {
    if (job.IsOver()) continue;
    std::unique_ptr<Series>& series = jobs_[job.job];
    if (series == nullptr) series = std::make_unique<Series>(*families_, job);
    series->Show(job);
  }
}

}  // namespace syncline
