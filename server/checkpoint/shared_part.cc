#include "server/checkpoint/shared_part.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "comm/base/crc32c.h"
#include "comm/base/status.h"
#include "server/checkpoint/catalog.h"
#include "server/checkpoint/safetensors.h"
#include "server/checkpoint/shared_name.h"

namespace syncline {
namespace {

// How long a part stays after it was let go. A save ends within half of this time.
constexpr absl::Duration kLetGoFor = absl::Hours(1);
constexpr char kLetGo[] = ".let-go";
// The head of a part that this program wrote is smaller.
constexpr uint64_t kMaxSharedHeadBytes = uint64_t{1} << 30;

absl::Status Mark(BlobStore& store, const std::string& part) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto mark, store.Create(part + kLetGo, 0));
  return mark->Finish({});
}

// Returns the last complete manifest of the run, or the one it resumed from.
absl::StatusOr<std::optional<Manifest>> FindLast(BlobStore& store,
                                                 const SharedPartQuery& query) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto all, ListCheckpoints(store, FolderOf(query.job)));
  std::optional<CheckpointName> last = query.resumed_from;
  for (const CheckpointInfo& one : all) {
    if (one.is_complete && one.name.run == query.run) last = one.name;
  }
  if (!last) return std::optional<Manifest>();
  SYNCLINE_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(store, query.job, *last));
  return std::optional(std::move(manifest));
}

absl::StatusOr<SharedPart> ReadSharedPart(BlobStore& store, const Manifest& manifest,
                                          const CheckpointFile& file) {
  if (file.head_bytes > kMaxSharedHeadBytes) return absl::DataLossError("its head");
  std::string head(file.head_bytes, '\0');
  const MutableByteView view = std::as_writable_bytes(std::span(head));
  SYNCLINE_RETURN_IF_ERROR(store.Read(BlobOf(manifest, file), 0, view));
  if (Crc32c(view) != file.head_crc32c) return absl::DataLossError("its checksum");
  SYNCLINE_ASSIGN_OR_RETURN(const SafetensorsHead parsed,
                            ParseHead(head, file.bytes - file.head_bytes));
  SharedPart part = {.file = file};
  for (const auto& [key, entry] : parsed.entries) {
    const auto text = parsed.metadata.find(key);
    const auto mark =
        text == parsed.metadata.end() ? std::nullopt : EntryMark::Parse(text->second);
    if (!mark) return absl::DataLossError("an entry without a checksum");
    part.marks[key] = *mark;
  }
  return part;
}

bool HasExactly(const SharedPart& part, const std::set<std::string>& keys) {
  return std::equal(
      part.marks.begin(), part.marks.end(), keys.begin(), keys.end(),
      [](const auto& mark, const std::string& key) { return mark.first == key; });
}

}  // namespace

absl::StatusOr<std::vector<Blob>> ListParts(BlobStore& store, const Manifest& manifest) {
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<Blob> blobs,
                            store.List(FolderOf(manifest.job, manifest.name)));
  if (HasShared(manifest)) {
    SYNCLINE_ASSIGN_OR_RETURN(
        const std::vector<Blob> shared,
        store.List(absl::StrCat(FolderOf(manifest.job), "/", kSharedFolder)));
    blobs.insert(blobs.end(), shared.begin(), shared.end());
  }
  return blobs;
}

std::shared_ptr<const SharedPart> FindSharedPart(BlobStore& store,
                                                 const SharedPartQuery& query) {
  const auto last = FindLast(store, query);
  if (!last.ok() || !*last) return nullptr;
  const std::string end = absl::StrFormat("-%05d.safetensors", query.shard);
  for (const CheckpointFile& file : (*last)->files) {
    if (!IsShared(file) || !absl::EndsWith(file.name, end)) continue;
    auto part = ReadSharedPart(store, **last, file);
    if (part.ok() && HasExactly(*part, query.keys)) {
      return std::make_shared<const SharedPart>(*std::move(part));
    }
  }
  return nullptr;
}

absl::Status ReleaseSharedParts(BlobStore& store, const Manifest& manifest) {
  for (const CheckpointFile& file : manifest.files) {
    if (!IsShared(file)) continue;
    const std::string part = BlobOf(manifest, file);
    if (Mark(store, part).ok()) continue;
    // The disk may be full, and deleting must work there. Without a mark the part stays
    // until a sweep has marked it; only an earlier mark would let it go too soon.
    SYNCLINE_RETURN_IF_ERROR(store.Delete(part + kLetGo));
  }
  return absl::OkStatus();
}

absl::Status SweepSharedParts(BlobStore& store, const std::string& job, absl::Time now) {
  // Manifests are read before the marks are listed: a part that is let go in between then
  // shows its new mark.
  SYNCLINE_ASSIGN_OR_RETURN(const auto all, ListCheckpoints(store, FolderOf(job)));
  std::set<std::string> named;
  for (const CheckpointInfo& one : all) {
    if (!one.is_complete) continue;
    const auto manifest = ReadManifest(store, job, one.name);
    if (absl::IsUnavailable(manifest.status())) return manifest.status();
    // The unreadable manifest may name any part.
    if (!manifest.ok()) return absl::OkStatus();
    for (const CheckpointFile& file : manifest->files) {
      if (IsShared(file)) named.insert(BlobOf(*manifest, file));
    }
  }
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Blob> blobs,
                            store.List(absl::StrCat(FolderOf(job), "/", kSharedFolder)));
  std::map<std::string, absl::Time> marked;
  std::set<std::string> parts;
  for (const Blob& blob : blobs) {
    if (absl::EndsWith(blob.name, kLetGo)) {
      marked[std::string(absl::StripSuffix(blob.name, kLetGo))] = blob.written;
    } else {
      parts.insert(blob.name);
    }
  }
  const auto is_old = [&](absl::Time mark) { return now - mark >= kLetGoFor; };
  for (const auto& [part, mark] : marked) {
    if (!is_old(mark) || named.contains(part)) continue;
    SYNCLINE_RETURN_IF_ERROR(store.Delete(part));
    SYNCLINE_RETURN_IF_ERROR(store.Delete(part + kLetGo));
  }
  // Last, since deleting may have made room for them. These parts have no manifest yet,
  // or their writer is gone.
  for (const std::string& part : parts) {
    if (named.contains(part) || marked.contains(part)) continue;
    SYNCLINE_RETURN_IF_ERROR(Mark(store, part));
  }
  return absl::OkStatus();
}

}  // namespace syncline
