#include "server/admin/metrics.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"
#include "server/admin/shard_series.h"
#include "server/admin/traffic_series.h"

namespace syncline {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;

// Gauges of each job, in their order. Those of checkpoints begin with kCheckpointStep.
enum JobFigure : size_t {
  kStep,
  kEpoch,
  kMembers,
  kCheckpointStep,
  kCheckpointBytes,
  kCheckpointSeconds,
  kCheckpointAge,
  kJournalDurable,
  kJournalLag,
  kJournalBytes,
  kJournalDiskBytes,
  kJournalBeginsAt,
  kJournalSnapshots,
  kJournalFailed,
  kBackupDurable,
  kBackupLag,
  kBackupsMissing
};
constexpr size_t kJobFigures = 17;

Family<Counter>& Counters(prometheus::Registry& registry, const char* name,
                          const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

Family<Gauge>& Gauges(prometheus::Registry& registry, const char* name,
                      const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

// Counters that grow to sums which were counted elsewhere. If a sum decreased, its
// process was restarted, and the count began at 0.
template <size_t kPhases>
class PhaseCounters {
 public:
  struct Of {
    Family<Counter>& seconds;
    Family<Counter>& steps;
  };
  PhaseCounters() = default;
  PhaseCounters(const Of& families, const prometheus::Labels& labels,
                const std::array<const char*, kPhases>& names) {
    steps_ = &families.steps.Add(labels);
    for (size_t i = 0; i < kPhases; ++i) {
      prometheus::Labels of_phase = labels;
      of_phase["phase"] = names[i];
      seconds_[i] = &families.seconds.Add(of_phase);
    }
  }
  void GrowTo(const PhaseSums<kPhases>& sums) {
    const bool is_anew = sums.steps < last_.steps;
    if (is_anew) last_ = {};
    steps_->Increment(static_cast<double>(sums.steps - last_.steps));
    for (size_t i = 0; i < kPhases; ++i) {
      seconds_[i]->Increment(std::max(0.0, sums.seconds[i] - last_.seconds[i]));
    }
    last_ = sums;
  }
  void Remove(const Of& families) const {
    if (steps_ == nullptr) return;
    families.steps.Remove(steps_);
    for (Counter* counter : seconds_) families.seconds.Remove(counter);
  }

 private:
  Counter* steps_ = nullptr;
  std::array<Counter*, kPhases> seconds_ = {};
  PhaseSums<kPhases> last_;
};

struct WorkerFigure {
  const char* name;
  const char* help;
  double (*value)(const Metrics::Worker&);
};
using Figures = const Metrics::Worker&;
constexpr WorkerFigure kWorkerFigures[] = {
    {"syncline_worker_heartbeat_age_seconds",
     "Time since the last heartbeat of a worker.",
     [](Figures worker) { return absl::ToDoubleSeconds(worker.heartbeat_age); }},
    {"syncline_worker_compression_ratio",
     "FP32 bytes of a worker's gradients over bytes on the wire.",
     [](Figures worker) { return worker.compression; }},
    {"syncline_worker_encode_seconds_per_value",
     "Seconds a worker takes to compress one value of a gradient.",
     [](Figures worker) { return 1e-9 * worker.encode_ns; }},
    {"syncline_worker_decode_seconds_per_value",
     "Seconds a worker takes to decode one value of a view.",
     [](Figures worker) { return 1e-9 * worker.decode_ns; }},
    {"syncline_worker_residual_ratio",
     "Norm of the compression residual over that of a gradient.",
     [](Figures worker) { return worker.residual_ratio; }},
    {"syncline_worker_diverged_blocks",
     "Blocks whose view differed from the servers' and was sent again.",
     [](Figures worker) { return worker.diverged_blocks; }},
    {"syncline_worker_left_out_steps",
     "Steps that a quorum made without this worker since it joined.",
     [](Figures worker) { return worker.left_out_steps; }},
    {"syncline_worker_window_fill_ratio",
     "Bytes on their way from a worker to the shard that has most of its window, over "
     "the window.",
     [](Figures worker) { return worker.window_fill; }}};

}  // namespace

struct Metrics::Families {
  explicit Families(prometheus::Registry& registry)
      : traffic(registry),
        shards(registry),
        job_figures{
            &Gauges(registry, "syncline_step", "The furthest step that was applied."),
            &Gauges(registry, "syncline_epoch", "The number of the current membership."),
            &Gauges(registry, "syncline_members", "Workers of the current epoch."),
            &Gauges(registry, "syncline_checkpoint_step", "Step of the last checkpoint."),
            &Gauges(registry, "syncline_checkpoint_bytes",
                    "Size of the last checkpoint."),
            &Gauges(registry, "syncline_checkpoint_seconds",
                    "How long the last checkpoint took to write."),
            &Gauges(registry, "syncline_checkpoint_age_seconds",
                    "Time since the last checkpoint was complete."),
            &Gauges(registry, "syncline_journal_durable_step",
                    "The step up to which a server's journal is on the disk."),
            &Gauges(registry, "syncline_journal_lag_steps",
                    "Steps that a server has made and its journal has not."),
            &Gauges(registry, "syncline_journal_bytes",
                    "What a server has written to the journal of this run."),
            &Gauges(registry, "syncline_journal_disk_bytes",
                    "What the disk holds of the journal of this run."),
            &Gauges(registry, "syncline_journal_begins_at_step",
                    "The step that the journal's last snapshots begin with."),
            &Gauges(registry, "syncline_journal_snapshots",
                    "Snapshots of shards that the journal has taken in this run."),
            &Gauges(registry, "syncline_journal_failed",
                    "1 if the journal has ended before its job."),
            &Gauges(registry, "syncline_backup_durable_step",
                    "The step up to which a server's backup has its records."),
            &Gauges(registry, "syncline_backup_lag_steps",
                    "Steps that a server has made and its backup does not have."),
            &Gauges(registry, "syncline_backups_missing",
                    "Servers of a job with durability peer that have no backup.")},
        worker_phases{Counters(registry, "syncline_step_phase_seconds_total",
                               "Time of a worker, by what it did or waited for."),
                      Counters(registry, "syncline_step_phase_steps_total",
                               "Steps of a worker whose time is in the phases.")},
        server_phases{Counters(registry, "syncline_server_phase_seconds_total",
                               "Time of the steps of a job on this server, by phase."),
                      Counters(registry, "syncline_server_phase_steps_total",
                               "Steps of a job whose time is in the server's phases.")},
        recoveries(
            Counters(registry, "syncline_recoveries_total",
                     "Losses from which a job has recovered, by what brought it back.")),
        recovery_seconds(
            Counters(registry, "syncline_recovery_seconds_total",
                     "Time that a job stood still until it had recovered.")) {
    Gauges(registry, "syncline_build_info", "Always 1; the labels say what runs.")
        .Add({{"version", SYNCLINE_VERSION},
              {"wire_version", absl::StrCat(kMessageVersion)}})
        .Set(1);
    auto& memory =
        Gauges(registry, "syncline_server_memory_bytes",
               "Memory of a server for its jobs: its budget, and what is placed.");
    memory_budget = &memory.Add({{"kind", "budget"}});
    memory_placed = &memory.Add({{"kind", "placed"}});
    for (size_t i = 0; i < worker_figures.size(); ++i) {
      worker_figures[i] =
          &Gauges(registry, kWorkerFigures[i].name, kWorkerFigures[i].help);
    }
    auto& door_family =
        Counters(registry, "syncline_auth_refused_total",
                 "Peers turned away before they had proved who they are, or for what "
                 "they sent.");
    auto& sent = Counters(registry, "syncline_wire_sent_bytes_total",
                          "Bytes that a server has sent to other hosts, by class.");
    auto& messages = Counters(registry, "syncline_wire_messages_total",
                              "Messages that a server has sent to other hosts.");
    auto& waits = Counters(registry, "syncline_wire_wait_seconds_total",
                           "Time that these messages waited until the kernel had them.");
    auto& queued = Gauges(registry, "syncline_wire_queued_bytes",
                          "Bytes that wait for room on the way to other hosts.");
    for (size_t i = 0; i < wire.size(); ++i) {
      const auto traffic_class = static_cast<TrafficClass>(i);
      const prometheus::Labels labels = {{"class", TrafficClassName(traffic_class)}};
      wire[i] = {&sent.Add(labels), &messages.Add(labels), &waits.Add(labels),
                 &queued.Add(labels)};
    }
    // Every reason exists from the start, at zero. If a series appeared only with its
    // first increment, a rate would miss that increment.
    for (size_t i = 0; i < turned_away.size(); ++i) {
      turned_away[i] = &door_family.Add(
          {{"door", "data"}, {"reason", RefusalName(static_cast<Refusal>(i))}});
    }
  }

  TrafficFamilies traffic;
  ShardFamilies shards;
  std::array<Family<Gauge>*, std::size(kWorkerFigures)> worker_figures;
  std::array<Family<Gauge>*, kJobFigures> job_figures;
  PhaseCounters<kWorkerPhaseNames.size()>::Of worker_phases;
  PhaseCounters<kServerPhaseNames.size()>::Of server_phases;
  Family<Counter>& recoveries;
  Family<Counter>& recovery_seconds;
  Gauge* memory_budget = nullptr;
  Gauge* memory_placed = nullptr;
  std::array<Counter*, static_cast<size_t>(Refusal::kUnread) + 1> turned_away;
  struct Wire {
    Counter* sent_bytes = nullptr;
    Counter* messages = nullptr;
    Counter* wait_seconds = nullptr;
    Gauge* queued_bytes = nullptr;
  };
  std::array<Wire, kTrafficClasses> wire;  // by class

  struct WorkerSeries {
    std::array<Gauge*, std::size(kWorkerFigures)> gauges = {};
    PhaseCounters<kWorkerPhaseNames.size()> phases = {};
  };
  struct Job {
    std::string name;
    std::array<Gauge*, kJobFigures> gauges = {};
    std::map<uint32_t, WorkerSeries> workers = {};  // by rank
    // On a server. Empty: no phases were set.
    std::optional<PhaseCounters<kServerPhaseNames.size()>> phases = std::nullopt;
    struct Recoveries {
      Counter* count = nullptr;
      Counter* seconds = nullptr;
    };
    std::map<std::string, Recoveries, std::less<>> recoveries = {};  // by cause
    // On a server, once an engine has the job.
    std::shared_ptr<JobTraffic> counted = nullptr;
    std::optional<TrafficSeries> traffic = std::nullopt;
    std::map<uint32_t, ShardSeries> shards = {};
  };

  void Forget(std::map<uint32_t, Job>::iterator job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (size_t i = 0; i < kJobFigures; ++i) {
      if (job->second.gauges[i] != nullptr) job_figures[i]->Remove(job->second.gauges[i]);
    }
    for (const auto& [rank, series] : job->second.workers) Forget(series);
    if (job->second.phases) job->second.phases->Remove(server_phases);
    if (job->second.traffic) job->second.traffic->Remove(traffic);
    for (const auto& [number, series] : job->second.shards) series.Remove(shards);
    for (const auto& [cause, counters] : job->second.recoveries) {
      recoveries.Remove(counters.count);
      recovery_seconds.Remove(counters.seconds);
    }
    jobs.erase(job);
  }

  void Forget(const WorkerSeries& series) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (size_t i = 0; i < series.gauges.size(); ++i) {
      worker_figures[i]->Remove(series.gauges[i]);
    }
    series.phases.Remove(worker_phases);
  }

  void Set(uint32_t job, JobFigure figure, double value) {
    absl::MutexLock lock(&mutex);
    const auto found = jobs.find(job);
    if (found == jobs.end()) return;
    Gauge*& gauge = found->second.gauges[figure];
    if (gauge == nullptr) {
      gauge = &job_figures[figure]->Add({{"job_name", found->second.name}});
    }
    gauge->Set(value);
  }

  absl::Mutex mutex;
  std::map<uint32_t, Job> jobs ABSL_GUARDED_BY(mutex);
};

Metrics::Metrics(prometheus::Registry& registry)
    : families_(std::make_unique<Families>(registry)) {}

Metrics::~Metrics() = default;

std::shared_ptr<JobTraffic> Metrics::TrafficOf(uint32_t job) {
  absl::MutexLock lock(&families_->mutex);
  const auto found = families_->jobs.find(job);
  if (found == families_->jobs.end()) return std::make_shared<JobTraffic>();
  Families::Job& of = found->second;
  if (of.counted == nullptr) {
    of.counted = std::make_shared<JobTraffic>();
    of.traffic.emplace(families_->traffic, of.name);
  }
  return of.counted;
}

void Metrics::Refresh() {
  absl::MutexLock lock(&families_->mutex);
  for (auto& [number, job] : families_->jobs) {
    if (job.traffic) job.traffic->GrowTo(job.counted->Read());
  }
}

void Metrics::CountWire(const TrafficCounts& before, const TrafficCounts& now) {
  const auto more = [](const BytesByClass& last, const BytesByClass& next, size_t i) {
    return static_cast<double>(next[i]) - static_cast<double>(last[i]);
  };
  for (size_t i = 0; i < kTrafficClasses; ++i) {
    const Families::Wire& wire = families_->wire[i];
    wire.sent_bytes->Increment(more(before.sent_bytes, now.sent_bytes, i));
    wire.messages->Increment(more(before.messages, now.messages, i));
    wire.wait_seconds->Increment(
        std::max(0.0, now.waited_seconds[i] - before.waited_seconds[i]));
    wire.queued_bytes->Increment(more(before.queued_bytes, now.queued_bytes, i));
  }
}

void Metrics::CountTurnedAway(Refusal refusal) {
  families_->turned_away[static_cast<size_t>(refusal)]->Increment();
}

void Metrics::NameJob(uint32_t job, std::string_view name) {
  absl::MutexLock lock(&families_->mutex);
  auto& jobs = families_->jobs;
  if (const auto found = jobs.find(job); found != jobs.end()) {
    if (found->second.name == name) return;
    families_->Forget(found);
  }
  // Two jobs of the same name would share their series, and the end of one would end the
  // other's.
  const auto same = std::find_if(jobs.begin(), jobs.end(), [name](const auto& other) {
    return other.second.name == name;
  });
  if (same != jobs.end()) families_->Forget(same);
  Families::Job& added = jobs[job];
  added.name = std::string(name);
  for (size_t i = 0; i < kCheckpointStep; ++i) {
    added.gauges[i] = &families_->job_figures[i]->Add({{"job_name", added.name}});
  }
}

void Metrics::SetServerMemory(uint64_t budget_bytes, uint64_t placed_bytes) {
  families_->memory_budget->Set(static_cast<double>(budget_bytes));
  families_->memory_placed->Set(static_cast<double>(placed_bytes));
}

void Metrics::ForgetJob(uint32_t job) {
  absl::MutexLock lock(&families_->mutex);
  const auto found = families_->jobs.find(job);
  if (found != families_->jobs.end()) families_->Forget(found);
}

void Metrics::SetStep(uint32_t job, uint64_t step) {
  families_->Set(job, kStep, static_cast<double>(step));
}
void Metrics::SetEpoch(uint32_t job, uint64_t epoch) {
  families_->Set(job, kEpoch, static_cast<double>(epoch));
}
void Metrics::SetMembers(uint32_t job, size_t members) {
  families_->Set(job, kMembers, static_cast<double>(members));
}

void Metrics::SetCheckpoint(uint32_t job, const Checkpoint& latest) {
  if (!latest.is_there) return;
  families_->Set(job, kCheckpointStep, static_cast<double>(latest.step));
  families_->Set(job, kCheckpointBytes, static_cast<double>(latest.bytes));
  families_->Set(job, kCheckpointSeconds, absl::ToDoubleSeconds(latest.took));
  families_->Set(job, kCheckpointAge, absl::ToDoubleSeconds(latest.age));
}

void Metrics::SetJournal(uint32_t job, const Journal& journal) {
  families_->Set(job, kJournalDurable, static_cast<double>(journal.durable_step));
  families_->Set(job, kJournalLag, static_cast<double>(journal.lag_steps));
  families_->Set(job, kJournalBytes, static_cast<double>(journal.bytes));
  families_->Set(job, kJournalDiskBytes, static_cast<double>(journal.disk_bytes));
  families_->Set(job, kJournalBeginsAt, static_cast<double>(journal.begins_at));
  families_->Set(job, kJournalSnapshots, static_cast<double>(journal.snapshots));
  families_->Set(job, kJournalFailed, journal.has_failed ? 1 : 0);
}

void Metrics::SetBackup(uint32_t job, const Backup& backup) {
  families_->Set(job, kBackupDurable, static_cast<double>(backup.durable_step));
  families_->Set(job, kBackupLag, static_cast<double>(backup.lag_steps));
}

void Metrics::SetBackupsMissing(uint32_t job, size_t servers) {
  families_->Set(job, kBackupsMissing, static_cast<double>(servers));
}

void Metrics::SetRecoveries(uint32_t job, std::string_view cause, uint64_t count,
                            absl::Duration took) {
  absl::MutexLock lock(&families_->mutex);
  const auto found = families_->jobs.find(job);
  if (found == families_->jobs.end()) return;
  auto& by_cause = found->second.recoveries;
  auto series = by_cause.find(cause);
  if (series == by_cause.end()) {
    const prometheus::Labels labels = {{"job_name", found->second.name},
                                       {"cause", std::string(cause)}};
    series =
        by_cause
            .emplace(cause,
                     Families::Job::Recoveries{&families_->recoveries.Add(labels),
                                               &families_->recovery_seconds.Add(labels)})
            .first;
  }
  GrowTo(*series->second.count, static_cast<double>(count));
  GrowTo(*series->second.seconds, absl::ToDoubleSeconds(took));
}

void Metrics::SetWorker(uint32_t job, uint32_t rank, const Worker& worker) {
  absl::MutexLock lock(&families_->mutex);
  const auto found = families_->jobs.find(job);
  if (found == families_->jobs.end()) return;
  const auto [entry, is_new] = found->second.workers.try_emplace(rank);
  Families::WorkerSeries& series = entry->second;
  if (is_new) {
    const prometheus::Labels labels = {{"job_name", found->second.name},
                                       {"rank", absl::StrCat(rank)}};
    series.phases = {families_->worker_phases, labels, kWorkerPhaseNames};
    for (size_t i = 0; i < series.gauges.size(); ++i) {
      series.gauges[i] = &families_->worker_figures[i]->Add(labels);
    }
  }
  for (size_t i = 0; i < series.gauges.size(); ++i) {
    series.gauges[i]->Set(kWorkerFigures[i].value(worker));
  }
  series.phases.GrowTo(worker.phases);
}

void Metrics::ForgetWorker(uint32_t job, uint32_t rank) {
  absl::MutexLock lock(&families_->mutex);
  const auto found = families_->jobs.find(job);
  if (found == families_->jobs.end()) return;
  const auto worker = found->second.workers.find(rank);
  if (worker == found->second.workers.end()) return;
  families_->Forget(worker->second);
  found->second.workers.erase(worker);
}

void Metrics::SetServerPhases(uint32_t job, const ServerPhases& phases) {
  absl::MutexLock lock(&families_->mutex);
  const auto found = families_->jobs.find(job);
  if (found == families_->jobs.end()) return;
  Families::Job& of = found->second;
  if (!of.phases) {
    of.phases.emplace(families_->server_phases, prometheus::Labels{{"job_name", of.name}},
                      kServerPhaseNames);
  }
  of.phases->GrowTo(phases);
}

void Metrics::SetShard(uint32_t job, uint32_t shard, const Shard& now) {
  absl::MutexLock lock(&families_->mutex);
  const auto found = families_->jobs.find(job);
  if (found == families_->jobs.end()) return;
  Families::Job& of = found->second;
  const auto series =
      of.shards.try_emplace(shard, families_->shards, of.name, shard).first;
  series->second.Set(now.step_seconds, now.window_fill);
}

void Metrics::ObserveStep(uint32_t job, absl::Duration duration) {
  absl::MutexLock lock(&families_->mutex);
  const auto found = families_->jobs.find(job);
  if (found == families_->jobs.end() || !found->second.traffic) return;
  found->second.traffic->ObserveStep(duration);
}

}  // namespace syncline
