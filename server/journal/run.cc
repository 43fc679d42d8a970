#include "server/journal/run.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "comm/base/status.h"
#include "server/checkpoint/manifest.h"
#include "server/journal/folder.h"
#include "server/journal/shard_log.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

struct SegmentFile {
  std::string path = {};
  SegmentKind kind = SegmentKind::kGoesOn;
};
// By shard, generation and segment number.
using Generation = std::map<uint32_t, SegmentFile>;
using Segments = std::map<uint32_t, std::map<uint32_t, Generation>>;

absl::StatusOr<std::vector<fs::path>> EntriesOf(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    entries.push_back(entry->path());
  }
  // The server has nothing of the job.
  if (!error || error == std::errc::no_such_file_or_directory) return entries;
  return absl::InternalError(
      absl::StrCat("cannot list ", folder.string(), ": ", error.message()));
}

absl::Status AddSegments(const fs::path& folder, Segments& segments) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto entries, EntriesOf(folder));
  for (const fs::path& entry : entries) {
    const auto place = ParseSegmentName(entry.filename().string());
    if (!place) continue;
    const std::string path = entry.string();
    const auto [known, is_new] = segments[place->shard][place->generation].try_emplace(
        place->number, SegmentFile{path, place->kind});
    if (is_new) continue;
    return absl::InvalidArgumentError(absl::StrCat(known->second.path, " and ", path,
                                                   " are the same segment; name one"));
  }
  return absl::OkStatus();
}

// Returns whether the generation is complete in itself. Generation 0 is: it has been
// there from the beginning.
bool IsWhole(uint32_t generation, const Generation& files) {
  const auto is_anew = [](const auto& one) {
    return one.second.kind == SegmentKind::kAnew;
  };
  return generation == 0 || std::ranges::any_of(files, is_anew);
}

// Returns the highest generation that is whole.
std::optional<uint32_t> WhatCounts(const std::map<uint32_t, Generation>& generations) {
  for (auto one = generations.rbegin(); one != generations.rend(); ++one) {
    if (IsWhole(one->first, one->second)) return one->first;
  }
  return std::nullopt;
}

void Sort(uint32_t shard, const Generation& files, JournalRun& run) {
  uint32_t from = 0;  // number of the first segment that counts
  uint32_t to = std::numeric_limits<uint32_t>::max();
  for (const auto& [number, file] : files) {
    if (file.kind == SegmentKind::kAnew) {
      from = number;
      // An earlier attempt may have left segments before it.
      to = std::numeric_limits<uint32_t>::max();
    }
    if (file.kind == SegmentKind::kBegun) to = std::min(to, number);
  }
  for (const auto& [number, file] : files) {
    const bool counts = from <= number && number < to;
    (counts ? run.shards : run.superseded)[shard].push_back(file.path);
  }
}

// Sorts a run's segments into those that count and the others.
void Sort(const Segments& segments, JournalRun& run) {
  for (const auto& [shard, generations] : segments) {
    const std::optional<uint32_t> counts = WhatCounts(generations);
    if (counts) run.generations[shard] = *counts;
    for (const auto& [generation, files] : generations) {
      if (generation == counts) {
        Sort(shard, files, run);
        continue;
      }
      for (const auto& [number, file] : files) run.superseded[shard].push_back(file.path);
    }
  }
}

// Returns the head of any of the shards; nothing if none has one.
absl::StatusOr<std::optional<SegmentHead>> HeadOf(const JournalRun& run) {
  for (const auto& [shard, paths] : run.shards) {
    const auto reader = SegmentReader::Open(paths.front(), SegmentReader::Place::kLast);
    // It was deleted after it was listed, by a running server that has written what
    // supersedes it.
    if (absl::IsNotFound(reader.status())) continue;
    SYNCLINE_RETURN_IF_ERROR(reader.status());
    if ((*reader)->head()) return (*reader)->head();
  }
  return std::nullopt;
}

absl::StatusOr<std::map<std::string, Segments>> RunsIn(
    const std::vector<std::string>& directories, const std::string& job) {
  std::map<std::string, Segments> runs;
  for (const std::string& directory : directories) {
    SYNCLINE_ASSIGN_OR_RETURN(const auto folders,
                              EntriesOf(fs::path(directory) / FolderOf(job)));
    for (const fs::path& folder : folders) {
      std::error_code error;
      if (!fs::is_directory(folder, error)) continue;
      SYNCLINE_RETURN_IF_ERROR(AddSegments(folder, runs[folder.filename().string()]));
    }
  }
  return runs;
}

}  // namespace

std::string JournalRun::Describe() const {
  return absl::StrCat(
      name, ", begun ",
      absl::FormatTime(absl::RFC3339_sec, absl::FromUnixMillis(head.created_unix_ms),
                       absl::UTCTimeZone()));
}

absl::StatusOr<JournalRun> FindRun(const std::vector<std::string>& directories,
                                   const std::string& job, const std::string& name) {
  SYNCLINE_ASSIGN_OR_RETURN(auto all, RunsIn(directories, job));
  absl::Status unreadable;
  std::vector<JournalRun> runs;
  std::vector<std::string> damaged;
  for (auto& [folder, segments] : all) {
    JournalRun run = {.name = folder};
    Sort(segments, run);
    auto head = HeadOf(run);
    if (!head.ok()) {
      if (folder == name) return head.status();
      unreadable.Update(head.status());
      damaged.push_back(absl::StrCat(folder, ": ", std::string(head.status().message())));
      continue;
    }
    if (!*head) continue;
    run.head = **std::move(head);
    runs.push_back(std::move(run));
  }
  const auto began = [](const JournalRun& run) { return run.head.created_unix_ms; };
  const auto found = name.empty() ? std::ranges::max_element(runs, {}, began)
                                  : std::ranges::find(runs, name, &JournalRun::name);
  std::vector<std::string> others;
  for (const JournalRun& run : runs) {
    if (found == runs.end() || run.name != found->name) others.push_back(run.Describe());
  }
  others.insert(others.end(), damaged.begin(), damaged.end());
  if (found != runs.end()) {
    found->others = std::move(others);
    return std::move(*found);
  }
  if (name.empty()) SYNCLINE_RETURN_IF_ERROR(unreadable);
  if (!others.empty()) {
    return absl::NotFoundError(absl::StrCat("no run '", name, "' of job '", job,
                                            "' is there, but ",
                                            absl::StrJoin(others, "; ")));
  }
  return absl::NotFoundError(absl::StrCat("no journal of job '", job, "' in ",
                                          absl::StrJoin(directories, ", "),
                                          "; name the --journal-dir of its servers"));
}

namespace {

constexpr char kSettled[] = "settled";

// Returns one folder for each directory that has segments of the run.
std::set<fs::path> FoldersOf(const JournalRun& run) {
  std::set<fs::path> folders;
  for (const auto& [shard, segments] : run.shards) {
    for (const std::string& segment : segments) {
      folders.insert(fs::path(segment).parent_path());
    }
  }
  return folders;
}

}  // namespace

absl::StatusOr<bool> HasRecords(const JournalRun& run) {
  for (const auto& [shard, segments] : run.shards) {
    SYNCLINE_ASSIGN_OR_RETURN(const auto records, ShardRecords::Open(segments));
    SYNCLINE_ASSIGN_OR_RETURN(const auto first, records->Next());
    if (first) return true;
  }
  return false;
}

absl::StatusOr<std::vector<UniqueFd>> LockRun(const JournalRun& run) {
  std::set<std::string> paths;
  for (const auto& [shard, segments] : run.shards) {
    const fs::path folder = fs::path(segments.front()).parent_path();
    paths.insert((folder / LockName(shard, run.generations.at(shard))).string());
  }
  // Locks other generations as well: a running server may write one that is not whole
  // yet.
  for (const fs::path& folder : FoldersOf(run)) {
    SYNCLINE_ASSIGN_OR_RETURN(const auto entries, EntriesOf(folder));
    for (const fs::path& entry : entries) {
      if (entry.extension() == ".lock") paths.insert(entry.string());
    }
  }
  std::vector<UniqueFd> locks;
  for (const std::string& path : paths) {
    SYNCLINE_ASSIGN_OR_RETURN(locks.emplace_back(), LockFile(path));
  }
  return locks;
}

absl::Status Settle(const JournalRun& run, const std::string& why) {
  for (const fs::path& folder : FoldersOf(run)) {
    const std::string path = (folder / kSettled).string();
    std::ofstream file(path);
    file << why << "\n";
    file.close();
    if (!file) return absl::InternalError(absl::StrCat("cannot write ", path));
    SYNCLINE_RETURN_IF_ERROR(SyncFolder(folder.string()));
  }
  return absl::OkStatus();
}

bool IsSettled(const JournalRun& run) {
  return std::ranges::all_of(FoldersOf(run), [](const fs::path& folder) {
    std::error_code error;
    return fs::exists(folder / kSettled, error);
  });
}

std::vector<RunOnDisk> ListRuns(const std::string& directory) {
  std::vector<RunOnDisk> runs;
  const auto jobs = EntriesOf(directory);
  if (!jobs.ok()) return runs;
  for (const fs::path& job : *jobs) {
    const auto folders = EntriesOf(job);
    if (!folders.ok()) continue;
    for (const fs::path& folder : *folders) {
      Segments segments;
      if (!AddSegments(folder, segments).ok() || segments.empty()) continue;
      RunOnDisk& run = runs.emplace_back(
          RunOnDisk{.job = job.filename().string(), .run = folder.filename().string()});
      for (const auto& [shard, generations] : segments) {
        const std::optional<uint32_t> counts = WhatCounts(generations);
        if (!counts) continue;
        run.shards.push_back(shard);
        run.generations.push_back(*counts);
      }
    }
  }
  return runs;
}

absl::StatusOr<std::unique_ptr<ShardRecords>> ShardRecords::Open(
    std::vector<std::string> segments) {
  std::unique_ptr<ShardRecords> records(new ShardRecords(std::move(segments)));
  SYNCLINE_RETURN_IF_ERROR(records->OpenNext());
  return records;
}

absl::Status ShardRecords::OpenNext() {
  const std::string& path = segments_[opened_++];
  const bool is_last = opened_ == segments_.size();
  SYNCLINE_ASSIGN_OR_RETURN(
      reader_, SegmentReader::Open(path, is_last ? SegmentReader::Place::kLast
                                                 : SegmentReader::Place::kFollowed));
  if (!reader_->head()) return absl::OkStatus();
  const SegmentHead& head = *reader_->head();
  if (opened_ == 1) head_ = head;
  if (opened_ > 1 && (head.first_sequence != next_ || head.shard != head_.shard)) {
    return absl::DataLossError(absl::StrCat(path, " begins with record ",
                                            head.first_sequence, ", and ", next_,
                                            " comes next: a segment is missing"));
  }
  next_ = head.first_sequence;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ShardRecord>> ShardRecords::Next() {
  for (;;) {
    SYNCLINE_ASSIGN_OR_RETURN(auto record, reader_->Next());
    if (record) {
      ++next_;
      return record;
    }
    if (opened_ == segments_.size()) break;
    SYNCLINE_RETURN_IF_ERROR(OpenNext());
  }
  if (reader_->torn_bytes() > 0) {
    torn_ = absl::StrCat("the last ", reader_->torn_bytes(), " bytes of ",
                         segments_.back(), " are not a complete record");
  }
  return std::nullopt;
}

}  // namespace syncline
