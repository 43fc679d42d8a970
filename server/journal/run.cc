#include "server/journal/run.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

// By shard and number of the segment.
using Segments = std::map<uint32_t, std::map<uint32_t, std::string>>;

absl::Status AddSegments(const fs::path& folder, Segments& segments) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto place = ParseSegmentName(entry.path().filename().string());
    if (!place) continue;
    const std::string path = entry.path().string();
    const auto [known, is_new] = segments[place->shard].try_emplace(place->number, path);
    if (is_new) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(known->second, " and ", path, " are the same segment; name one"));
  }
  return absl::OkStatus();
}

// Nothing when none has a head.
absl::StatusOr<std::optional<SegmentHead>> HeadOf(const Segments& segments) {
  for (const auto& [shard, paths] : segments) {
    SYNCLINE_ASSIGN_OR_RETURN(
        const auto reader,
        SegmentReader::Open(paths.begin()->second, SegmentReader::Place::kLast));
    if (reader->head()) return reader->head();
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<JournalRun> FindRun(const std::vector<std::string>& directories,
                                   const std::string& job) {
  std::map<std::string, Segments> runs;
  for (const std::string& directory : directories) {
    std::error_code error;
    const fs::path folder = fs::path(directory) / FolderOf(job);
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      SYNCLINE_RETURN_IF_ERROR(
          AddSegments(entry.path(), runs[entry.path().filename().string()]));
    }
  }
  JournalRun found;
  for (const auto& [name, segments] : runs) {
    SYNCLINE_ASSIGN_OR_RETURN(const std::optional<SegmentHead> head, HeadOf(segments));
    if (!head || head->created_unix_ms < found.head.created_unix_ms) continue;
    found = {.name = name, .head = *head};
    for (const auto& [shard, paths] : segments) {
      for (const auto& [number, path] : paths) found.shards[shard].push_back(path);
    }
  }
  if (!found.name.empty()) return found;
  return absl::NotFoundError(absl::StrCat("no journal of job '", job, "' in ",
                                          absl::StrJoin(directories, ", "),
                                          "; name the --journal-dir of its servers"));
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
                         segments_.back(), " are no whole record");
  }
  return std::nullopt;
}

}  // namespace syncline
