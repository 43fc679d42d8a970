#include "server/checkpoint/part.h"

#include <array>
#include <span>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "comm/base/check.h"
#include "comm/base/crc32c.h"
#include "comm/base/status.h"
#include "server/checkpoint/shared_name.h"
#include "server/optimizer/state_storage.h"

namespace syncline {
namespace {

// All entries are padded to this, so that FP32 data behind bytes of another type stays
// aligned.
constexpr size_t kAlignment = 4;

template <typename T>
ByteView BytesOf(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

absl::Status NamedTwice(const std::string& key) {
  return absl::InvalidArgumentError(
      absl::StrCat("two tensors would both be '", key,
                   "' in a checkpoint; give one of them another name"));
}

uint64_t ElementsOf(const CheckpointTensor& tensor) {
  uint64_t elements = 1;
  for (const uint64_t size : tensor.shape) elements *= size;
  return elements;
}

}  // namespace

std::string CheckpointLayout::KeyOf(const BlockRange& range) const {
  const CheckpointTensor& tensor = tensors[range.tensor];
  if (range.elements == ElementsOf(tensor)) return tensor.name;
  return absl::StrCat(tensor.name, "[", range.first_element, ":",
                      range.first_element + range.elements, "]");
}

std::vector<std::string> CheckpointLayout::SlotsOf(uint32_t tensor) const {
  std::vector<std::string> names;
  if (tensors[tensor].frozen) return names;
  for (const StateSlot& slot : plan->optimizer(tensor).slots()) {
    names.emplace_back(slot.name);
  }
  return names;
}

StateType CheckpointLayout::StateTypeOf(uint32_t tensor, size_t slot) const {
  return EffectiveType(plan->state_type(tensor),
                       plan->optimizer(tensor).slots()[slot].kind,
                       ElementsOf(tensors[tensor]));
}

bool EntryMark::IsAsFarAs(const EntryMark& other) const {
  return version == other.version && updates == other.updates &&
         samples == other.samples && parting_samples == other.parting_samples &&
         rate_factor == other.rate_factor;
}

std::string EntryMark::ToString() const {
  std::string text = absl::StrFormat("crc32c=%08x bytes=%d", crc32c, bytes);
  if (version == 0 && updates == 0) return text;
  absl::StrAppendFormat(&text,
                        " version=%d updates=%d samples=%.17g parting=%.17g rate=%.9g",
                        version, updates, samples, parting_samples, rate_factor);
  return text;
}

std::optional<EntryMark> EntryMark::Parse(const std::string& text) {
  EntryMark mark;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    const auto& [name, value] = parts;
    bool ok = false;
    if (name == "crc32c") ok = absl::SimpleHexAtoi(value, &mark.crc32c);
    if (name == "bytes") ok = absl::SimpleAtoi(value, &mark.bytes);
    if (name == "version") ok = absl::SimpleAtoi(value, &mark.version);
    if (name == "updates") ok = absl::SimpleAtoi(value, &mark.updates);
    if (name == "samples") ok = absl::SimpleAtod(value, &mark.samples);
    if (name == "parting") ok = absl::SimpleAtod(value, &mark.parting_samples);
    if (name == "rate") ok = absl::SimpleAtof(value, &mark.rate_factor);
    if (!ok) return std::nullopt;
  }
  return mark;
}

PartWriter::PartWriter(BlobStore& store, Options options)
    : store_(store), options_(std::move(options)) {
  for (const ShardBlock& block : options_.blocks) ranges_[block.block] = block.range;
}

absl::StatusOr<std::unique_ptr<PartWriter>> PartWriter::Create(BlobStore& store,
                                                               Options options) {
  std::unique_ptr<PartWriter> part(new PartWriter(store, std::move(options)));
  const CheckpointLayout& layout = *part->options_.layout;
  size_t weights = kMaxHeadBytesWithoutEntries;
  size_t frozen = kMaxHeadBytesWithoutEntries;
  size_t state = kMaxHeadBytesWithoutEntries + MaxEntryBytes(kJobMemory) + 16;
  bool has_frozen = false;
  for (const auto& [id, range] : part->ranges_) {
    const std::string key = layout.KeyOf(range);
    const bool is_frozen = layout.tensors[range.tensor].frozen;
    has_frozen = has_frozen || is_frozen;
    (is_frozen ? frozen : weights) += MaxEntryBytes(key);
    state += MaxEntryBytes(key + kViewOf) + MaxEntryBytes(key + kSumOf);
    state += MaxEntryBytes(key + kFactorsOf);
    for (const std::string& slot : layout.SlotsOf(range.tensor)) {
      state += MaxEntryBytes(absl::StrCat(key, "/", slot));
    }
  }
  const auto named = [&](const std::string& kind) {
    return absl::StrFormat("%s-%05d.safetensors", kind, part->options_.shard);
  };
  part->weights_.name = named(kWeightsFile);
  part->state_.name = named(kStateFile);
  // The checkpoint's name is part of the file's name, so no other save writes it.
  part->frozen_.name =
      absl::StrCat(kSharedFolder, "/",
                   named(absl::StrCat(kFrozenFile, "-", part->options_.name.ToString())));
  const std::string folder = FolderOf(part->options_.job, part->options_.name);
  SYNCLINE_RETURN_IF_ERROR(part->Open(part->weights_, folder, weights));
  SYNCLINE_RETURN_IF_ERROR(part->Open(part->state_, folder, state));
  if (!has_frozen || part->options_.frozen != nullptr) return part;
  SYNCLINE_RETURN_IF_ERROR(
      part->Open(part->frozen_, FolderOf(part->options_.job), frozen));
  return part;
}

absl::Status PartWriter::Open(File& file, const std::string& folder, size_t head_bytes) {
  file.head_bytes = (head_bytes + 63) / 64 * 64;
  SYNCLINE_ASSIGN_OR_RETURN(
      file.writer, store_.Create(absl::StrCat(folder, "/", file.name), file.head_bytes));
  return absl::OkStatus();
}

absl::Status PartWriter::Put(File& file, const std::string& key, SafetensorsEntry entry,
                             ByteView bytes) {
  const std::array<std::byte, kAlignment> zeros = {};
  const size_t rest = bytes.size() % kAlignment;
  const ByteView padding = ByteView(zeros).first(rest == 0 ? 0 : kAlignment - rest);
  const uint32_t sum = Crc32c(padding, Crc32c(bytes));
  entry.begin = file.data_bytes;
  entry.end = entry.begin + bytes.size() + padding.size();
  if (entry.dtype == "U8") entry.shape = {entry.end - entry.begin};
  file.data_bytes = entry.end;
  if (!file.head.entries.try_emplace(key, std::move(entry)).second) {
    return NamedTwice(key);
  }
  file.head.metadata[key] = EntryMark{.crc32c = sum, .bytes = bytes.size()}.ToString();
  SYNCLINE_RETURN_IF_ERROR(file.writer->Append(bytes));
  return padding.empty() ? absl::OkStatus() : file.writer->Append(padding);
}

absl::Status PartWriter::PutFloats(File& file, const std::string& key,
                                   const std::vector<float>& values) {
  if (values.empty()) return absl::OkStatus();
  return Put(file, key, {.dtype = "F32", .shape = {values.size()}}, BytesOf(values));
}

absl::Status PartWriter::Add(uint32_t block, const BlockSnapshot& saved) {
  const std::string key = options_.layout->KeyOf(ranges_.at(block));
  if (!keys_.insert(key).second) return NamedTwice(key);
  SYNCLINE_RETURN_IF_ERROR(AddWeights(key, block, saved));
  return PutState(key, ranges_.at(block).tensor, saved);
}

absl::Status PartWriter::AddWeights(const std::string& key, uint32_t block,
                                    const BlockSnapshot& saved) {
  const BlockRange& range = ranges_.at(block);
  const CheckpointTensor& tensor = options_.layout->tensors[range.tensor];
  const ByteView bytes = BytesOf(saved.weights);
  const EntryMark mark = {.crc32c = Crc32c(bytes),
                          .bytes = bytes.size(),
                          .version = saved.version,
                          .updates = saved.updates,
                          .samples = saved.accumulated_samples,
                          .parting_samples = saved.accumulated_parting_samples,
                          .rate_factor = saved.rate_factor};
  if (tensor.frozen && options_.frozen != nullptr) {
    const EntryMark& earlier = options_.frozen->marks.at(key);
    const bool is_same = earlier.crc32c == mark.crc32c && earlier.bytes == mark.bytes;
    if (is_same) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("'", key,
                                            "' is frozen, but differs from what ",
                                            options_.frozen->file.name, " has of it"));
  }
  File& file = tensor.frozen ? frozen_ : weights_;
  SafetensorsEntry entry = {.dtype = "F32", .shape = {range.elements}};
  if (range.elements == ElementsOf(tensor)) entry.shape = tensor.shape;
  SYNCLINE_RETURN_IF_ERROR(Put(file, key, std::move(entry), bytes));
  file.head.metadata[key] = mark.ToString();
  return absl::OkStatus();
}

std::set<std::string> PartWriter::Options::FrozenKeys() const {
  std::set<std::string> keys;
  for (const ShardBlock& block : blocks) {
    if (layout->tensors[block.range.tensor].frozen)
      keys.insert(layout->KeyOf(block.range));
  }
  return keys;
}

absl::Status PartWriter::PutState(const std::string& key, uint32_t tensor,
                                  const BlockSnapshot& saved) {
  const std::vector<std::string> slots = options_.layout->SlotsOf(tensor);
  SYNCLINE_CHECK(slots.size() == saved.state.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    const std::vector<std::byte>& bytes = saved.state[i];
    const bool is_f32 = bytes.size() == saved.weights.size() * sizeof(float);
    SafetensorsEntry entry = {.dtype = is_f32 ? "F32" : "U8"};
    if (is_f32) entry.shape = {saved.weights.size()};
    SYNCLINE_RETURN_IF_ERROR(
        Put(state_, absl::StrCat(key, "/", slots[i]), std::move(entry), bytes));
  }
  SYNCLINE_RETURN_IF_ERROR(PutFloats(state_, key + kViewOf, saved.view));
  return PutFloats(state_, key + kSumOf, saved.accumulator);
}

absl::StatusOr<std::vector<CheckpointFile>> PartWriter::Finish(
    const ShardSnapshot& rest) {
  SYNCLINE_CHECK(keys_.size() == ranges_.size());
  for (const auto& [tensor, factors] : rest.factors) {
    const std::string& name = options_.layout->tensors[tensor].name;
    SYNCLINE_RETURN_IF_ERROR(PutFloats(state_, name + kFactorsOf, factors));
  }
  if (!rest.job_memory.empty()) {
    SYNCLINE_RETURN_IF_ERROR(Put(
        state_, absl::StrFormat("%s-%05d", kJobMemory, options_.shard),
        {.dtype = "F64", .shape = {rest.job_memory.size()}}, BytesOf(rest.job_memory)));
  }
  SYNCLINE_ASSIGN_OR_RETURN(CheckpointFile weights, Close(weights_));
  SYNCLINE_ASSIGN_OR_RETURN(CheckpointFile state, Close(state_));
  std::vector<CheckpointFile> files = {std::move(weights), std::move(state)};
  if (options_.frozen != nullptr) files.push_back(options_.frozen->file);
  if (frozen_.writer != nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(files.emplace_back(), Close(frozen_));
  }
  return files;
}

absl::StatusOr<CheckpointFile> PartWriter::Close(File& file) {
  const std::string head = WriteHead(file.head, file.head_bytes);
  const ByteView bytes = std::as_bytes(std::span(head));
  SYNCLINE_RETURN_IF_ERROR(file.writer->Finish(bytes));
  return CheckpointFile{.name = file.name,
                        .bytes = file.head_bytes + file.data_bytes,
                        .head_bytes = file.head_bytes,
                        .head_crc32c = Crc32c(bytes)};
}

}  // namespace syncline
