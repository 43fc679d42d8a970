#include "server/service/checkpoint_saver.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "server/checkpoint/shared_part.h"

namespace syncline {
namespace {

// Number of ended steps that are remembered, to ignore copies that come late.
constexpr size_t kMaxEnded = 64;

uint64_t BytesOf(const BlockSnapshot& saved) {
  uint64_t bytes = (saved.weights.size() + saved.view.size() + saved.accumulator.size()) *
                   sizeof(float);
  for (const auto& slot : saved.state) bytes += slot.size();
  return bytes;
}

}  // namespace

CheckpointSaver::CheckpointSaver(Options options)
    : options_(std::move(options)), thread_([this] { Run(); }) {}

CheckpointSaver::~CheckpointSaver() { Stop(); }

void CheckpointSaver::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    events_.clear();
  }
  if (thread_.joinable()) thread_.join();
  parts_.clear();
}

void CheckpointSaver::Begin(SavedJob job) {
  absl::MutexLock lock(&mutex_);
  const uint32_t id = job.job;
  jobs_[id] = Job{.about = std::make_shared<const SavedJob>(std::move(job))};
}

void CheckpointSaver::BeginLast(uint32_t id, uint64_t step) {
  absl::MutexLock lock(&mutex_);
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return;
  job->second.last = step;
  job->second.ended.erase(step);
  auto& saves = job->second.saves;
  for (auto save = saves.upper_bound(step); save != saves.end();) {
    // Makes the saver's thread close the files that it has begun.
    events_.push_back({.job = id, .step = save->first});
    save = saves.erase(save);
  }
}

void CheckpointSaver::Drop(uint32_t job) {
  absl::MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  // Makes the saver's thread close the files that it has begun.
  for (const auto& [step, save] : found->second.saves) {
    events_.push_back({.job = job, .step = step});
  }
  jobs_.erase(found);
  events_.push_back({.job = job, .is_last = true});
}

void CheckpointSaver::DropAll() {
  std::vector<uint32_t> all;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [job, saved] : jobs_) all.push_back(job);
  }
  for (const uint32_t job : all) Drop(job);
}

void CheckpointSaver::Limit(std::optional<uint64_t> bytes) {
  absl::MutexLock lock(&mutex_);
  limit_ = bytes;
}

// ---- Called by the engines ----

CheckpointSaver::Save* CheckpointSaver::FindSave(uint32_t job, uint64_t step) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return nullptr;
  const auto save = found->second.saves.find(step);
  return save == found->second.saves.end() ? nullptr : &save->second;
}

// Returns the save of that step, and whether it is new. Null if it is over. Only one
// version of a job is written at a time; a save that begins meanwhile fails.
std::pair<CheckpointSaver::Save*, bool> CheckpointSaver::SaveOf(Job& job, uint64_t step) {
  if (job.ended.contains(step) || step > job.last) return {nullptr, false};
  const bool is_busy = !job.saves.empty();
  const auto [entry, is_new] = job.saves.try_emplace(step);
  Save& save = entry->second;
  if (!is_new) return {&save, false};
  save.began = clock_.Now();
  for (uint32_t engine = 0; engine < job.about->blocks.size(); ++engine) {
    save.engines.insert(engine);
  }
  if (is_busy) {
    save.status = absl::UnavailableError(
        absl::StrCat("the checkpoint of step ", job.saves.begin()->first,
                     " is still being written; save less often, or to a faster disk"));
  }
  return {&save, true};
}

CheckpointSaver::Taken CheckpointSaver::Take(uint32_t id, uint32_t engine,
                                             const ShardCopied& copied) {
  absl::MutexLock lock(&mutex_);
  const auto job = jobs_.find(id);
  if (job == jobs_.end() || stopping_) return {};
  const auto [save, is_new] = SaveOf(job->second, copied.step);
  if (save == nullptr) return {};
  const uint64_t bytes = BytesOf(*copied.saved);
  if (save->status.ok() && limit_ && held_ + bytes > *limit_) {
    save->status = absl::ResourceExhaustedError(absl::StrCat(
        "copies of ", (held_ + bytes) >> 20,
        " MiB wait for the disk, but the server has only ", *limit_ >> 20,
        " MiB for them beside its jobs; give it more --memory, or a faster disk"));
  }
  if (!save->status.ok()) return {.is_first = is_new};
  held_ += bytes;
  events_.push_back({.job = id,
                     .step = copied.step,
                     .engine = engine,
                     .about = job->second.about,
                     .block = copied.block,
                     .saved = copied.saved,
                     .bytes = bytes,
                     .more = copied.more});
  return {.is_first = is_new, .is_kept = true};
}

void CheckpointSaver::Take(uint32_t id, uint32_t engine, const ShardCutDone& done) {
  absl::MutexLock lock(&mutex_);
  const auto job = jobs_.find(id);
  if (job == jobs_.end() || stopping_) return;
  Save* save = SaveOf(job->second, done.step).first;
  if (save == nullptr) return;
  if (done.rest == nullptr) {
    save->status.Update(absl::UnavailableError(
        "it was ordered too late: some blocks are past that step"));
  }
  events_.push_back({.job = id,
                     .step = done.step,
                     .engine = engine,
                     .about = job->second.about,
                     .rest = done.rest,
                     .training = done.training});
}

// ---- The saver's thread ----

void CheckpointSaver::Run() {
  const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !events_.empty();
  };
  for (;;) {
    Event event;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (stopping_) return;
      event = std::move(events_.front());
      events_.pop_front();
    }
    Handle(event);
    const Event done = {.job = event.job,
                        .step = event.step,
                        .engine = event.engine,
                        .bytes = event.bytes,
                        .more = event.more};
    event = Event();  // frees its memory before it counts as free
    {
      absl::MutexLock lock(&mutex_);
      held_ -= done.bytes;
    }
    if (done.more) options_.next(done.job, done.engine, done.step);
  }
}

void CheckpointSaver::Handle(const Event& event) {
  if (event.is_last) {
    std::erase_if(unshared_, [&](const auto& part) { return part.first == event.job; });
    return;
  }
  bool is_wanted = false;
  {
    absl::MutexLock lock(&mutex_);
    const Save* save = FindSave(event.job, event.step);
    is_wanted = save != nullptr && save->status.ok();
  }
  std::vector<CheckpointFile> files;
  const absl::Status written = is_wanted ? Write(event, files) : absl::OkStatus();
  if (!is_wanted || !written.ok()) {
    std::erase_if(parts_, [&](const auto& part) {
      return part.first.first == std::pair(event.job, event.step);
    });
  }
  {
    absl::MutexLock lock(&mutex_);
    Save* save = FindSave(event.job, event.step);
    if (save != nullptr) save->status.Update(written);
  }
  if (event.saved == nullptr) Finish(event, std::move(files));
}

absl::StatusOr<std::unique_ptr<PartWriter>> CheckpointSaver::Open(
    const Event& event) const {
  const SavedJob& job = *event.about;
  PartWriter::Options options = {.job = job.name,
                                 .name = {.run = job.run, .step = event.step},
                                 .shard = job.first_shard + event.engine,
                                 .layout = job.layout,
                                 .blocks = job.blocks[event.engine]};
  const std::set<std::string> frozen = options.FrozenKeys();
  if (!frozen.empty() && !unshared_.contains({event.job, event.engine})) {
    options.frozen = FindSharedPart(*options_.store, {.job = job.name,
                                                      .run = job.run,
                                                      .resumed_from = job.resumed_from,
                                                      .shard = options.shard,
                                                      .keys = frozen});
  }
  return PartWriter::Create(*options_.store, std::move(options));
}

absl::Status CheckpointSaver::Write(const Event& event,
                                    std::vector<CheckpointFile>& files) {
  const SavedJob& job = *event.about;
  const PartId id = {{event.job, event.step}, event.engine};
  if (parts_.count(id) == 0 && !job.blocks[event.engine].empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(parts_[id], Open(event));
  }
  if (event.saved != nullptr) {
    const absl::Status added = parts_.at(id)->Add(event.block, *event.saved);
    // The next part therefore has all blocks itself, and later parts share those.
    if (absl::IsDataLoss(added)) unshared_.insert({event.job, event.engine});
    return added;
  }
  if (job.blocks[event.engine].empty()) return absl::OkStatus();
  const auto part = parts_.extract(id);
  SYNCLINE_ASSIGN_OR_RETURN(files, part.mapped()->Finish(*event.rest));
  unshared_.erase({event.job, event.engine});
  return absl::OkStatus();
}

// Notes that an engine has finished. The last one ends the save.
void CheckpointSaver::Finish(const Event& event, std::vector<CheckpointFile> files) {
  CheckpointWritten written = {.job = event.job, .step = event.step};
  {
    absl::MutexLock lock(&mutex_);
    Save* save = FindSave(event.job, event.step);
    if (save == nullptr) return;
    save->files.insert(save->files.end(), files.begin(), files.end());
    save->engines.erase(event.engine);
    if (!save->engines.empty()) return;
    written.status = save->status;
    if (written.status.ok()) written.files = std::move(save->files);
    written.training = event.training;
    written.took = clock_.Now() - save->began;
    Job& job = jobs_.at(event.job);
    job.saves.erase(event.step);
    job.ended.insert(event.step);
    if (job.ended.size() > kMaxEnded) job.ended.erase(job.ended.begin());
  }
  if (!written.status.ok()) {
    options_.log.Warning(
        "a checkpoint failed; the job goes on, and earlier ones are kept",
        {{"job", event.job},
         {"step", event.step},
         {"error", std::string(written.status.message())}});
  }
  options_.written(std::move(written));
}

}  // namespace syncline
