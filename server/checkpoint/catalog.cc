#include "server/checkpoint/catalog.h"

#include <algorithm>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "server/checkpoint/shared_name.h"
#include "server/checkpoint/shared_part.h"

namespace syncline {
namespace {

// A manifest has a few hundred bytes for each tensor and file.
constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 28;

// The suffix of a claim's file: "run7.claimed", beside the checkpoints of the run. Claims
// older than the last 100 runs are deleted.
constexpr char kClaimed[] = ".claimed";
constexpr uint32_t kKeptClaims = 100;

// Age at which an incomplete checkpoint of another run counts as abandoned. A server
// finishes its part, or gives up, within half of this time.
constexpr absl::Duration kLeftFor = absl::Hours(1);

std::string ClaimOf(const std::string& job, uint32_t run) {
  return absl::StrCat(FolderOf(job), "/run", run, kClaimed);
}

// Returns 7 for "bert/run7.claimed", and nothing for a blob that is not a claim.
std::optional<uint32_t> ClaimedRun(absl::string_view blob) {
  const size_t slash = blob.rfind('/');
  absl::string_view file = blob.substr(slash + 1);
  uint32_t run = 0;
  if (slash == blob.npos || !absl::ConsumeSuffix(&file, kClaimed) ||
      !absl::ConsumePrefix(&file, "run") || !absl::SimpleAtoi(file, &run)) {
    return std::nullopt;
  }
  return run;
}

std::string Named(const std::string& job, const std::string& name) {
  return absl::StrCat("checkpoint ", name, " of job '", Printable(job), "'");
}

absl::Status Missing(BlobStore& store, const std::string& job, const std::string& name) {
  std::string there = "there is none";
  const auto all = ListCheckpoints(store, FolderOf(job));
  std::vector<std::string> names;
  if (all.ok()) {
    for (const CheckpointInfo& one : *all) {
      if (one.is_complete) names.push_back(one.name.ToString());
    }
  }
  if (!names.empty()) {
    there = absl::StrCat("there are ", names.size(), " from ", names.front(), " to ",
                         names.back());
  }
  return absl::NotFoundError(
      absl::StrCat(Named(job, name), " is not in ", store.Describe(), ": ", there));
}

absl::Status NoRunAfter(const std::string& job, uint32_t run) {
  return absl::FailedPreconditionError(
      absl::StrCat("there is no run after run", run, " of job '", Printable(job),
                   "'; delete the run with that number from its folder"));
}

}  // namespace

absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(BlobStore& store,
                                                            const std::string& folder) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Blob> blobs, store.List(folder));
  std::map<std::pair<std::string, CheckpointName>, CheckpointInfo> found;
  for (const Blob& blob : blobs) {
    const std::vector<std::string> parts = absl::StrSplit(blob.name, '/');
    const auto name = parts.size() == 3 ? CheckpointName::Parse(parts[1]) : std::nullopt;
    if (!name) continue;
    CheckpointInfo& info = found[{parts[0], *name}];
    info.folder = parts[0];
    info.name = *name;
    info.is_complete = info.is_complete || parts[2] == kManifestFile;
    info.bytes += blob.bytes;
    info.written = std::max(info.written, blob.written);
  }
  std::vector<CheckpointInfo> infos;
  for (auto& [key, info] : found) infos.push_back(std::move(info));
  return infos;
}

absl::StatusOr<Manifest> ReadManifest(BlobStore& store, const std::string& job,
                                      const CheckpointName& name) {
  const std::string folder = FolderOf(job, name);
  const std::string file = absl::StrCat(folder, "/", kManifestFile);
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Blob> blobs, store.List(folder));
  const auto blob = std::ranges::find(blobs, file, &Blob::name);
  if (blob == blobs.end()) return Missing(store, job, name.ToString());
  const auto about = [&](const absl::Status& status) {
    return absl::Status(
        status.code(), absl::StrCat("the manifest of ", Named(job, name.ToString()), ": ",
                                    std::string(status.message())));
  };
  if (blob->bytes > kMaxManifestBytes) {
    return about(absl::DataLossError("it is too large for a manifest"));
  }
  absl::StatusOr<Manifest> manifest = Manifest();
  try {
    std::string text(blob->bytes, '\0');
    const absl::Status read =
        store.Read(file, 0, std::as_writable_bytes(std::span(text)));
    if (!read.ok()) return about(read);
    manifest = ParseManifest(text);
  } catch (const std::bad_alloc&) {
    return about(absl::ResourceExhaustedError("there is too little memory to read it"));
  }
  if (!manifest.ok()) return about(manifest.status());
  if (manifest->job != job || manifest->name != name) {
    return about(absl::DataLossError(
        absl::StrCat("it belongs to ", Named(manifest->job, manifest->name.ToString()))));
  }
  return manifest;
}

absl::Status CheckParts(BlobStore& store, const Manifest& manifest) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Blob> blobs, ListParts(store, manifest));
  for (const CheckpointFile& file : manifest.files) {
    const auto blob = std::ranges::find(blobs, BlobOf(manifest, file), &Blob::name);
    if (blob != blobs.end() && blob->bytes == file.bytes) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "a server wrote ", file.name, " with ", file.bytes, " bytes, but ",
        store.Describe(), " of the coordinator has ",
        blob == blobs.end() ? "no such file"
                            : absl::StrCat("one with ", blob->bytes, " bytes"),
        "; give the coordinator and all servers the same shared directory, or bucket, "
        "as --checkpoint-dir"));
  }
  return absl::OkStatus();
}

absl::Status PutManifest(BlobStore& store, const Manifest& manifest) {
  const std::string text = WriteManifest(manifest);
  const std::string name =
      absl::StrCat(FolderOf(manifest.job, manifest.name), "/", kManifestFile);
  SYNCLINE_ASSIGN_OR_RETURN(const auto writer, store.Create(name, 0));
  SYNCLINE_RETURN_IF_ERROR(writer->Append(std::as_bytes(std::span(text))));
  return writer->Finish({});
}

absl::Status DeleteCheckpoint(BlobStore& store, const std::string& job,
                              const CheckpointName& name) {
  const std::string folder = FolderOf(job, name);
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Blob> blobs, store.List(folder));
  const std::string manifest = absl::StrCat(folder, "/", kManifestFile);
  if (std::ranges::find(blobs, manifest, &Blob::name) != blobs.end()) {
    const auto about = ReadManifest(store, job, name);
    if (absl::IsUnavailable(about.status())) return about.status();
    if (about.ok()) SYNCLINE_RETURN_IF_ERROR(ReleaseSharedParts(store, *about));
  }
  SYNCLINE_RETURN_IF_ERROR(store.Delete(manifest));
  for (const Blob& blob : blobs) SYNCLINE_RETURN_IF_ERROR(store.Delete(blob.name));
  return absl::OkStatus();
}

absl::Status Retain(BlobStore& store, const std::string& job,
                    const CheckpointName& latest, uint32_t keep) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto all, ListCheckpoints(store, FolderOf(job)));
  // Later runs belong to another coordinator, which applies its own retention.
  const auto is_mine = [&](const CheckpointInfo& one) {
    return one.is_complete && one.name.run <= latest.run;
  };
  auto complete = static_cast<size_t>(std::ranges::count_if(all, is_mine));
  const auto newest = std::ranges::find(all, latest, &CheckpointInfo::name);
  // The time according to the store's clock, not this host's.
  const absl::Time now = newest == all.end() ? absl::InfinitePast() : newest->written;
  for (const CheckpointInfo& one : all) {
    const bool is_old = is_mine(one) && complete > keep && one.name != latest;
    // Another coordinator may still be writing it.
    const bool is_given_up = one.name.run == latest.run || now - one.written >= kLeftFor;
    const bool is_left = !one.is_complete && one.name < latest && is_given_up;
    if (is_old) --complete;
    if (is_old || is_left) {
      SYNCLINE_RETURN_IF_ERROR(DeleteCheckpoint(store, job, one.name));
    }
  }
  return SweepSharedParts(store, job, now);
}

absl::StatusOr<uint32_t> ClaimRun(BlobStore& store, const std::string& job,
                                  uint32_t run) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Blob> blobs, store.List(FolderOf(job)));
  for (const Blob& blob : blobs) {
    const auto claimed = ClaimedRun(blob.name);
    if (!claimed || *claimed < run) continue;
    if (*claimed == std::numeric_limits<uint32_t>::max())
      return NoRunAfter(job, *claimed);
    run = *claimed + 1;
  }
  for (;; ++run) {
    const absl::Status mine = store.Claim(ClaimOf(job, run));
    if (mine.ok()) break;
    if (!absl::IsAlreadyExists(mine)) return mine;
    if (run == std::numeric_limits<uint32_t>::max()) return NoRunAfter(job, run);
  }
  for (const Blob& blob : blobs) {
    const auto claimed = ClaimedRun(blob.name);
    if (!claimed || run - *claimed < kKeptClaims) continue;
    SYNCLINE_RETURN_IF_ERROR(store.Delete(blob.name));
  }
  return run;
}

absl::StatusOr<Beginning> FindBeginning(BlobStore& store, const std::string& job,
                                        const std::string& resume) {
  SYNCLINE_RETURN_IF_ERROR(CheckResume(resume));
  SYNCLINE_ASSIGN_OR_RETURN(const auto all, ListCheckpoints(store, FolderOf(job)));
  Beginning beginning;
  std::optional<CheckpointName> from = CheckpointName::Parse(resume);
  for (const CheckpointInfo& one : all) {
    if (one.name.run == std::numeric_limits<uint32_t>::max()) {
      return NoRunAfter(job, one.name.run);
    }
    beginning.run = std::max(beginning.run, one.name.run + 1);
    const bool takes_latest = resume == "auto" || resume == "latest";
    if (takes_latest && one.is_complete) from = one.name;
  }
  if (resume == "latest" && !from) return Missing(store, job, "latest");
  if (!from) return beginning;
  beginning.resumes = true;
  SYNCLINE_ASSIGN_OR_RETURN(beginning.from, ReadManifest(store, job, *from));
  return beginning;
}

}  // namespace syncline
