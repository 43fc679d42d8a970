#include "server/journal/journal.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "comm/base/status.h"
#include "server/journal/folder.h"

namespace syncline {
namespace {

// Interval at which it checks for complete checkpoints and for room on the disk.
constexpr absl::Duration kPruneEvery = absl::Seconds(1);
// Number of checkpoints that are remembered although they were never completed.
constexpr size_t kMaxSaved = 8;
constexpr absl::Duration kLongestRetry = absl::Minutes(5);
// Approximate bytes of a record without its payload.
constexpr uint64_t kRecordBytes = 256;
// At most about this much is synced at once, so that a slow disk is seen to make
// progress.
constexpr uint64_t kGroupBytes = uint64_t{16} << 20;
// While the thread tidies, the disk gets this many times the patience.
constexpr int kPatienceToTidy = 4;

uint64_t BytesOf(const BlockSnapshot& block) {
  const size_t floats =
      block.weights.size() + block.view.size() + block.accumulator.size();
  uint64_t bytes = floats * sizeof(float);
  for (const auto& state : block.state) bytes += state.size();
  return bytes;
}

uint64_t BytesOf(const ShardRecord& record) {
  if (const auto* step = std::get_if<StepRecord>(&record.what)) {
    return kRecordBytes + step->payload.size;
  }
  if (const auto* parting = std::get_if<PartingRecord>(&record.what)) {
    return kRecordBytes + parting->payload.size;
  }
  if (const auto* block = std::get_if<BlockStateRecord>(&record.what)) {
    return kRecordBytes + BytesOf(*block->saved);
  }
  const auto* seed = std::get_if<SeedRecord>(&record.what);
  if (seed == nullptr) return kRecordBytes;
  uint64_t bytes = kRecordBytes + seed->values.size;
  for (const auto& state : seed->state) bytes += state.size();
  return bytes;
}

}  // namespace

Journal::Journal(JournalOptions options)
    : options_(std::move(options)),
      backlog_(options_.backlog),
      thread_([this] { Run(); }) {}

Journal::~Journal() { Stop(); }

void Journal::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status Journal::Begin(JournaledJob begun) {
  const std::string folder =
      absl::StrCat(options_.directory, "/", FolderOf(begun.head.job));
  if (!begun.begins_anew) {
    SYNCLINE_RETURN_IF_ERROR(MakeFolder(folder));
    SYNCLINE_RETURN_IF_ERROR(TryFolder(folder));
  }
  auto job = std::make_shared<Job>();
  job->id = begun.job;
  job->head = begun.head;
  job->engines = static_cast<uint32_t>(begun.blocks.size());
  job->may_begin_anew = begun.may_begin_anew;
  job->retry = options_.retry;
  const uint64_t version = begun.head.began_from ? begun.head.began_from->step : 0;
  job->state = {.durable = version, .taken = version};
  for (size_t i = 0; i < begun.blocks.size(); ++i) {
    SegmentHead head = begun.head;
    head.shard += static_cast<uint32_t>(i);
    head.blocks = begun.blocks[i];
    if (begun.tails.empty()) {
      job->shards.emplace_back(std::move(head), begun.trained[i], version);
    } else {
      job->shards.emplace_back(std::move(head), begun.tails[i]);
    }
    if (i < begun.state_bytes.size()) {
      job->shards.back().ExpectStateBytes(begun.state_bytes[i]);
    }
  }
  job->run = std::move(begun.run);
  job->is_fenced = begun.is_fenced;
  job->generation = begun.generation;
  if (begun.begins_anew) {
    job->phase = Phase::kEnded;
    job->state.error = "it starts over after a take-over, and is not complete yet";
    for (uint32_t engine = 0; engine < job->engines; ++engine) job->silent.insert(engine);
  }
  absl::MutexLock lock(&mutex_);
  job->number = ++begun_;
  jobs_[begun.job] = std::move(job);
  return absl::OkStatus();
}

void Journal::Name(uint32_t id, const std::string& run) {
  absl::MutexLock lock(&mutex_);
  const auto job = jobs_.find(id);
  if (job != jobs_.end() && job->second->run.empty()) job->second->run = run;
}

// Ends the journal with the largest backlog if the disk is stuck. The waiting job may not
// be the one that filled the queue.
bool Journal::WaitForRoom(Job& job, uint64_t bytes) {
  while (!stopping_ && job.phase != Phase::kEnded && !backlog_.HasRoom(bytes)) {
    const absl::Duration deadline = backlog_.deadline(TimesAsPatient());
    if (changed_.WaitUntil(mutex_, clock_, deadline)) continue;
    // Another waiting thread may have made room.
    if (stopping_ || job.phase == Phase::kEnded || backlog_.HasRoom(bytes)) continue;
    End(Largest(job), WhyStuck());
  }
  return job.phase != Phase::kEnded && !stopping_;
}

int Journal::TimesAsPatient() const {
  return stage_ == Stage::kTidies ? kPatienceToTidy : 1;
}

std::string Journal::WhyStuck() const {
  return absl::StrCat(backlog_.held(), " bytes wait for ", options_.directory,
                      stage_ == Stage::kTidies
                          ? ", where deleting old segments, or reading the checkpoint "
                            "that covers them, takes longer than "
                          : ", which took none for ",
                      absl::FormatDuration(TimesAsPatient() * options_.backlog.patience));
}

bool Journal::IsCurrent(const Job& job) const {
  const auto current = jobs_.find(job.id);
  return current != jobs_.end() && current->second.get() == &job;
}

// Ends the journals of all jobs that wait, because those written next would wait as long.
// They start over once the disk makes progress. Nobody waits for what is left of a
// dropped job.
void Journal::EndIfStuck() {
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = clock_.Now();
  const bool stood_still =
      now - std::exchange(looked_at_, now) > options_.backlog.patience / 2;
  if (stood_still) backlog_.Moved(now);
  const bool is_stuck = backlog_.held() > 0 && now >= backlog_.deadline(TimesAsPatient());
  if (stopping_ || !is_stuck) return;
  std::set<std::shared_ptr<Job>> waiting = writing_;
  for (const Event& event : events_) waiting.insert(event.job);
  const std::string why = WhyStuck();
  for (const auto& job : waiting) {
    if (job->may_begin_anew && IsCurrent(*job)) End(*job, why);
  }
}

void Journal::Enter(Stage stage) {
  absl::MutexLock lock(&mutex_);
  stage_ = stage;
  backlog_.Moved(clock_.Now());
}

Journal::Job& Journal::Largest(Job& otherwise) {
  const std::optional<uint64_t> number = backlog_.largest();
  for (const Event& event : events_) {
    if (event.job->number == number) return *event.job;
  }
  return otherwise;
}

void Journal::Allow(uint32_t id, uint32_t generation) {
  absl::MutexLock lock(&mutex_);
  const auto job = jobs_.find(id);
  if (job == jobs_.end() || job->second->phase != Phase::kEnded) return;
  job->second->is_allowed = true;
  job->second->generation = generation;
}

void Journal::Take(uint32_t id, uint32_t engine,
                   std::shared_ptr<const ShardRecord> record) {
  const uint64_t bytes = BytesOf(*record);
  absl::MutexLock lock(&mutex_);
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  const std::shared_ptr<Job> job = found->second;
  if (job->silent.contains(engine) || !WaitForRoom(*job, bytes)) return;
  if (job->silent.contains(engine)) return;  // it may have ended during the wait
  if (const auto* step = std::get_if<StepRecord>(&record->what)) {
    job->state.taken = std::max(job->state.taken, step->step + 1);
  }
  if (const auto* state = std::get_if<BlockStateRecord>(&record->what)) {
    job->state.taken = std::max(job->state.taken, state->saved->version);
  }
  backlog_.Add(job->number, bytes, clock_.Now());
  events_.push_back(
      {.job = job, .engine = engine, .record = std::move(record), .bytes = bytes});
  changed_.SignalAll();
}

bool Journal::BeginAnew(uint32_t id, uint32_t engine) {
  absl::MutexLock lock(&mutex_);
  const auto job = jobs_.find(id);
  if (job == jobs_.end() || job->second->phase != Phase::kBeginsAnew) return false;
  return job->second->silent.erase(engine) > 0;
}

void Journal::TookState(uint32_t job, uint32_t engine) {
  Say(Event::Kind::kTookState, job, engine);
}

void Journal::Whole(uint32_t job, uint32_t engine) {
  Say(Event::Kind::kWhole, job, engine);
}

void Journal::Say(Event::Kind kind, uint32_t id, uint32_t engine) {
  absl::MutexLock lock(&mutex_);
  const auto job = jobs_.find(id);
  if (job == jobs_.end() || job->second->phase == Phase::kEnded) return;
  if (job->second->silent.contains(engine)) return;  // of an attempt that was given up
  events_.push_back({.kind = kind, .job = job->second, .engine = engine});
  changed_.SignalAll();
}

void Journal::Saved(uint32_t id, uint64_t step) {
  absl::MutexLock lock(&mutex_);
  const auto job = jobs_.find(id);
  if (job == jobs_.end() || options_.checkpoints == nullptr) return;
  job->second->saved.insert(step);
  if (job->second->saved.size() > kMaxSaved) {
    job->second->saved.erase(job->second->saved.begin());
  }
}

// The job lives on in those of its records that still wait. Otherwise its files are
// closed here, after the lock is released, because closing may block.
void Journal::Drop(uint32_t job) {
  std::shared_ptr<Job> dropped;
  absl::MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  dropped = std::move(found->second);
  jobs_.erase(found);
}

void Journal::DropAll() {
  std::map<uint32_t, std::shared_ptr<Job>> dropped;
  absl::MutexLock lock(&mutex_);
  dropped.swap(jobs_);
}

std::string Journal::RunOf(uint32_t id) {
  absl::MutexLock lock(&mutex_);
  const auto job = jobs_.find(id);
  return job == jobs_.end() ? "" : job->second->run;
}

std::optional<JournalState> Journal::State(uint32_t id) {
  absl::MutexLock lock(&mutex_);
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return std::nullopt;
  JournalState state = job->second->state;
  state.has_ended = job->second->phase == Phase::kEnded;
  return state;
}

void Journal::End(Job& job, const std::string& why) {
  if (job.phase == Phase::kEnded) return;
  if (job.phase == Phase::kBeginsAnew) {
    job.retry = std::min(job.retry * 2, kLongestRetry);
    options_.log.Warning("the journal could not start over",
                         {{"job", job.id}, {"error", why}});
  } else {
    options_.log.Error("the journal ends here; the job goes on, but is not durable",
                       {{"job", job.id}, {"version", job.state.durable}, {"error", why}});
  }
  job.phase = Phase::kEnded;
  job.is_allowed = !job.is_fenced;
  job.has_all_parts = false;
  job.state.error = why;
  ++job.state.endings;
  job.retry_at = clock_.Now() + job.retry;
  for (uint32_t engine = 0; engine < job.engines; ++engine) job.silent.insert(engine);
  // Nobody must wait for records that will not be written.
  for (uint32_t engine = 0; engine < job.engines; ++engine) {
    TellDurable(job, engine, std::numeric_limits<uint64_t>::max());
  }
  backlog_.Drop(job.number);
  // Last, because these events may hold the last reference to the job.
  std::erase_if(events_, [&](const Event& event) { return event.job.get() == &job; });
  changed_.SignalAll();
}

// Does not report about a job that was dropped: another job may have its id by now.
void Journal::TellDurable(const Job& job, uint32_t engine, uint64_t records) {
  if (is_lost_ || !IsCurrent(job)) return;
  options_.on_durable(job.id, engine, records);
}

void Journal::Fail(Job& job, const absl::Status& why) {
  std::optional<absl::Status> lost;
  {
    absl::MutexLock lock(&mutex_);
    // Nobody relies on the disk if the journal has ended or is not whole yet.
    if (absl::IsDataLoss(why) && job.phase == Phase::kGoesOn) {
      lost = Lose(job, why);
    } else {
      End(job, std::string(why.message()));
    }
  }
  if (lost) options_.on_lost(*lost);
}

// Ends the journals of other jobs as well: they are on the same disk.
std::optional<absl::Status> Journal::Lose(Job& job, const absl::Status& why) {
  if (std::exchange(is_lost_, true)) return std::nullopt;
  const absl::Status lost = absl::DataLossError(absl::StrCat(
      why.message(),
      "; the disk may have dropped what was written, so this server ends. "
      "Of job '",
      job.head.job, "' all steps below ", job.state.durable,
      " are on the disk: repair it, or move its files to another disk, so that there is "
      "only one copy, and start the server again with that --journal-dir"));
  options_.log.Error("a sync of the journal failed: this server ends",
                     {{"job", job.id},
                      {"version", job.state.durable},
                      {"error", std::string(why.message())}});
  stopping_ = true;
  job.phase = Phase::kEnded;
  job.state.error = std::string(why.message());
  for (const auto& [id, other] : jobs_) {
    other->phase = Phase::kEnded;
    other->may_begin_anew = false;
  }
  events_.clear();
  changed_.SignalAll();
  return lost;
}

// ---- Its thread ----

void Journal::Run() {
  absl::Duration next_prune = clock_.Now() + kPruneEvery;
  for (;;) {
    std::deque<Event> events;
    {
      absl::MutexLock lock(&mutex_);
      while (!stopping_ && events_.empty() &&
             changed_.WaitUntil(mutex_, clock_, next_prune)) {
      }
      if (stopping_ && events_.empty()) return;
      events = NextGroup();
    }
    uint64_t bytes = 0;
    for (const Event& event : events) bytes += event.bytes;
    if (!events.empty()) WriteGroup(events);
    events.clear();  // the memory must be free before it counts as free
    std::set<std::shared_ptr<Job>> written;  // may hold the last reference to a job
    {
      absl::MutexLock lock(&mutex_);
      backlog_.Done(bytes, clock_.Now());
      written.swap(writing_);
      changed_.SignalAll();
    }
    if (clock_.Now() < next_prune) continue;
    Prune();
    LookForRoom();
    next_prune = clock_.Now() + kPruneEvery;
  }
}

std::deque<Journal::Event> Journal::NextGroup() {
  std::deque<Event> group;
  uint64_t bytes = 0;
  while (!events_.empty() && bytes < kGroupBytes) {
    Event& event = events_.front();
    bytes += event.bytes;
    if (event.bytes > 0) backlog_.Begin(event.job->number, event.bytes);
    writing_.insert(event.job);
    group.push_back(std::move(event));
    events_.pop_front();
  }
  return group;
}

std::string Journal::FolderOfRun(const Job& job) const {
  return absl::StrCat(options_.directory, "/", FolderOf(job.head.job), "/", job.run);
}

void Journal::WriteGroup(const std::deque<Event>& events) {
  Enter(Stage::kWrites);
  std::set<std::shared_ptr<Job>> jobs;
  std::vector<Event> others;
  for (const Event& event : events) {
    std::string folder;
    {
      absl::MutexLock lock(&mutex_);
      backlog_.Moved(clock_.Now());
      if (event.job->phase == Phase::kEnded) continue;
      folder = FolderOfRun(*event.job);
    }
    jobs.insert(event.job);
    if (event.kind != Event::Kind::kRecord) {
      others.push_back(event);
    } else {
      Write(event, folder);
    }
  }
  for (const auto& job : jobs) SyncAll(*job);
  Enter(Stage::kTidies);
  for (const Event& event : others) Heed(event);
  for (const auto& job : jobs) {
    FinishIfFarEnough(*job);
    FinishSnapshots(*job);
    AskForSnapshots(job);
    ShowSize(*job);
  }
}

void Journal::Heed(const Event& event) {
  ShardLog& shard = event.job->shards[event.engine];
  if (event.kind == Event::Kind::kTookState) return shard.TookState();
  bool was_last = false;
  {
    absl::MutexLock lock(&mutex_);
    if (event.job->phase == Phase::kEnded) return;
    if (event.job->phase == Phase::kGoesOn) return shard.TookAllStates();
    was_last = event.job->partial.erase(event.engine) > 0 && event.job->partial.empty();
    event.job->has_all_parts = was_last;
    if (event.job->is_fenced) return;  // FinishIfFarEnough does the rest
  }
  if (was_last) FinishBeginning(*event.job);
}

void Journal::SyncAll(Job& job) {
  uint64_t durable = std::numeric_limits<uint64_t>::max();
  for (ShardLog& shard : job.shards) {
    if (const absl::Status synced = shard.Sync(); !synced.ok()) Fail(job, synced);
    {
      absl::MutexLock lock(&mutex_);
      backlog_.Moved(clock_.Now());
    }
    durable = std::min(durable, shard.durable());
  }
  absl::MutexLock lock(&mutex_);
  if (job.phase == Phase::kEnded) return;
  // A server that trains nothing reports UINT64_MAX, hence the minimum. Nothing is
  // durable in a journal that is not whole.
  if (job.phase == Phase::kGoesOn) {
    job.state.durable = std::min(durable, job.state.taken);
  }
  for (uint32_t engine = 0; engine < job.engines; ++engine) {
    if (!job.silent.contains(engine)) {
      TellDurable(job, engine, job.shards[engine].durable_records());
    }
  }
}

void Journal::Write(const Event& event, const std::string& folder) {
  ShardLog& shard = event.job->shards[event.engine];
  if (shard.bytes() == 0) {
    if (const absl::Status made = MakeFolder(folder); !made.ok()) {
      return Fail(*event.job, made);
    }
  }
  const absl::Status written = shard.Append(folder, options_.segment_bytes, event.record);
  if (!written.ok()) Fail(*event.job, written);
}

}  // namespace syncline
