#include "server/checkpoint/reader.h"

#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/crc32c.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "server/checkpoint/catalog.h"

namespace syncline {
namespace {

// A head has some hundred bytes for each block: a file that says more is damaged.
constexpr uint64_t kMaxHeadBytes = uint64_t{1} << 32;

template <typename T>
std::vector<T> As(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::string Shape(const CheckpointTensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.shape, ", "), "]",
                      tensor.frozen ? ", frozen" : "");
}

}  // namespace

absl::Status CheckpointReader::About(const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("checkpoint ", manifest_.name.ToString(), " of job '",
                   Printable(manifest_.job), "': ", std::string(status.message())));
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    BlobStore& store, const std::string& job, const CheckpointName& name) {
  SYNCLINE_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(store, job, name));
  std::unique_ptr<CheckpointReader> reader(
      new CheckpointReader(store, std::move(manifest)));
  for (size_t file = 0; file < reader->manifest_.files.size(); ++file) {
    SYNCLINE_RETURN_IF_ERROR(reader->About(reader->ReadHead(file)));
  }
  return reader;
}

absl::Status CheckpointReader::ReadHead(size_t index) {
  const CheckpointFile& file = manifest_.files[index];
  const auto damaged = [&](const std::string& why) {
    return absl::DataLossError(absl::StrCat("file ", file.name, " is damaged: ", why));
  };
  if (file.name.find('/') != std::string::npos) return damaged("its name is a path");
  if (file.head_bytes > file.bytes || file.head_bytes > kMaxHeadBytes) {
    return damaged("the manifest gives it an impossible size");
  }
  const std::string name =
      absl::StrCat(FolderOf(manifest_.job, manifest_.name), "/", file.name);
  std::string bytes(file.head_bytes, '\0');
  const MutableByteView view = std::as_writable_bytes(std::span(bytes));
  const absl::Status read = store_.Read(name, 0, view);
  if (absl::IsNotFound(read)) return damaged("it is missing");
  SYNCLINE_RETURN_IF_ERROR(read);
  if (Crc32c(view) != file.head_crc32c) return damaged("its head has another checksum");
  const auto head = ParseHead(bytes, file.bytes - file.head_bytes);
  if (!head.ok()) return damaged(std::string(head.status().message()));
  for (const auto& [key, where] : head->entries) {
    const auto text = head->metadata.find(key);
    const auto mark =
        text == head->metadata.end() ? std::nullopt : EntryMark::Parse(text->second);
    if (!mark || mark->bytes > where.end - where.begin) {
      return damaged(absl::StrCat("entry '", key, "' has no checksum"));
    }
    Entries& entries = file.name.starts_with(kWeightsFile) ? weights_ : state_;
    const Entry entry = {.file = index, .where = where, .mark = *mark};
    if (entries.emplace(key, entry).second) continue;
    return damaged(absl::StrCat("'", key, "' is in another file, too"));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::CheckTensors(
    const std::vector<CheckpointTensor>& tensors) const {
  const auto differs = [&](const std::string& what) {
    return About(absl::FailedPreconditionError(
        absl::StrCat(what,
                     "; start with the model that it was made of, or begin anew "
                     "(--resume never)")));
  };
  for (size_t i = 0; i < std::min(tensors.size(), manifest_.tensors.size()); ++i) {
    const CheckpointTensor& saved = manifest_.tensors[i];
    if (saved == tensors[i]) continue;
    return differs(absl::StrCat("tensor ", i, " is '", saved.name, "' of ", Shape(saved),
                                " there, and the job declares '", tensors[i].name,
                                "' of ", Shape(tensors[i])));
  }
  if (tensors.size() == manifest_.tensors.size()) return absl::OkStatus();
  return differs(absl::StrCat("it has ", manifest_.tensors.size(),
                              " tensors, and the job declares ", tensors.size()));
}

absl::StatusOr<const CheckpointReader::Entry*> CheckpointReader::FindWeights(
    const std::string& key) const {
  const auto found = weights_.find(key);
  if (found != weights_.end()) return &found->second;
  return About(absl::DataLossError(absl::StrCat("it lacks the weights of '", key, "'")));
}

absl::StatusOr<std::vector<std::byte>> CheckpointReader::ReadBytes(
    const std::string& key, const Entry& entry) const {
  const CheckpointFile& file = manifest_.files[entry.file];
  std::vector<std::byte> bytes(entry.where.end - entry.where.begin);
  SYNCLINE_RETURN_IF_ERROR(About(
      store_.Read(absl::StrCat(FolderOf(manifest_.job, manifest_.name), "/", file.name),
                  file.head_bytes + entry.where.begin, bytes)));
  const uint32_t sum = Crc32c(bytes);
  bytes.resize(entry.mark.bytes);
  if (sum == entry.mark.crc32c) return bytes;
  return About(absl::DataLossError(
      absl::StrCat("file ", file.name, " is damaged: '", key, "' has another checksum")));
}

absl::StatusOr<std::vector<float>> CheckpointReader::ReadFloats(
    const Entries& of, const std::string& key) const {
  const auto entry = of.find(key);
  if (entry == of.end()) return std::vector<float>();
  SYNCLINE_ASSIGN_OR_RETURN(const auto bytes, ReadBytes(key, entry->second));
  return As<float>(bytes);
}

absl::StatusOr<ShardSnapshot> CheckpointReader::Read(
    const ShardBlock& block, const CheckpointLayout& layout) const {
  const std::string key = layout.KeyOf(block.range);
  SYNCLINE_ASSIGN_OR_RETURN(const Entry* weights, FindWeights(key));
  ShardSnapshot part = {.loss_scale = manifest_.loss_scaler.scale};
  BlockSnapshot& saved = part.blocks[block.block];
  saved.version = weights->mark.version;
  saved.updates = weights->mark.updates;
  saved.seeded = true;
  saved.accumulated_samples = weights->mark.samples;
  saved.accumulated_parting_samples = weights->mark.parting_samples;
  saved.rate_factor = weights->mark.rate_factor;
  SYNCLINE_ASSIGN_OR_RETURN(saved.weights, ReadFloats(weights_, key));
  SYNCLINE_ASSIGN_OR_RETURN(saved.view, ReadFloats(state_, key + kViewOf));
  SYNCLINE_ASSIGN_OR_RETURN(saved.accumulator, ReadFloats(state_, key + kSumOf));
  for (const std::string& slot : layout.SlotsOf(block.range.tensor)) {
    const std::string name = absl::StrCat(key, "/", slot);
    const auto state = state_.find(name);
    if (state == state_.end()) {
      return About(absl::FailedPreconditionError(absl::StrCat(
          "it lacks '", name,
          "': it was made with another optimizer; start with that one, or begin anew "
          "(--resume never)")));
    }
    SYNCLINE_ASSIGN_OR_RETURN(saved.state.emplace_back(), ReadBytes(name, state->second));
  }
  return part;
}

absl::StatusOr<ShardSnapshot> CheckpointReader::ReadRest(
    const CheckpointLayout& layout) const {
  ShardSnapshot rest = {.loss_scale = manifest_.loss_scaler.scale};
  for (uint32_t tensor = 0; tensor < layout.tensors.size(); ++tensor) {
    SYNCLINE_ASSIGN_OR_RETURN(
        std::vector<float> factors,
        ReadFloats(state_, layout.tensors[tensor].name + kFactorsOf));
    if (!factors.empty()) rest.factors[tensor] = std::move(factors);
  }
  const auto memory = state_.lower_bound(kJobMemory);
  if (memory != state_.end() && memory->first.starts_with(kJobMemory)) {
    SYNCLINE_ASSIGN_OR_RETURN(const auto bytes, ReadBytes(memory->first, memory->second));
    rest.job_memory = As<double>(bytes);
  }
  return rest;
}

absl::Status CheckpointReader::Verify() const {
  for (const Entries* entries : {&weights_, &state_}) {
    for (const auto& [key, entry] : *entries) {
      SYNCLINE_RETURN_IF_ERROR(ReadBytes(key, entry).status());
    }
  }
  CheckpointLayout layout = {.tensors = manifest_.tensors};
  std::vector<uint64_t> elements;
  for (const CheckpointTensor& tensor : manifest_.tensors) {
    elements.push_back(TensorShape(tensor.shape).elements());
  }
  for (const BlockRange& range : CutIntoBlocks(elements)) {
    SYNCLINE_RETURN_IF_ERROR(FindWeights(layout.KeyOf(range)).status());
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::Export(BlobStore& store, const std::string& file) const {
  const CheckpointLayout layout = {.tensors = manifest_.tensors};
  std::vector<uint64_t> elements;
  SafetensorsHead head;
  size_t head_bytes = kMaxHeadBytesWithoutEntries;
  uint64_t end = 0;
  for (const CheckpointTensor& tensor : manifest_.tensors) {
    elements.push_back(TensorShape(tensor.shape).elements());
    const uint64_t begin = end;
    end += elements.back() * sizeof(float);
    head.entries[tensor.name] = {
        .dtype = "F32", .shape = tensor.shape, .begin = begin, .end = end};
    head_bytes += MaxEntryBytes(tensor.name);
  }
  head.metadata = {{"job", manifest_.job}, {"checkpoint", manifest_.name.ToString()}};
  head_bytes = (head_bytes + 12 * manifest_.job.size() + 63) / 64 * 64;
  SYNCLINE_ASSIGN_OR_RETURN(const auto writer, store.Create(file, head_bytes));
  for (const BlockRange& range : CutIntoBlocks(elements)) {
    const std::string key = layout.KeyOf(range);
    SYNCLINE_ASSIGN_OR_RETURN(const Entry* entry, FindWeights(key));
    SYNCLINE_ASSIGN_OR_RETURN(const auto bytes, ReadBytes(key, *entry));
    SYNCLINE_RETURN_IF_ERROR(writer->Append(bytes));
  }
  const std::string written = WriteHead(head, head_bytes);
  return writer->Finish(std::as_bytes(std::span(written)));
}

}  // namespace syncline
