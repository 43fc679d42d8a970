#include "server/checkpoint/reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "comm/base/crc32c.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "server/checkpoint/catalog.h"
#include "server/checkpoint/shared_name.h"
#include "server/checkpoint/shared_part.h"
#include "server/optimizer/state_storage.h"

namespace syncline {
namespace {

// A head has a few hundred bytes for each block. A file that claims a longer one is
// damaged.
constexpr uint64_t kMaxHeadBytes = uint64_t{1} << 30;

absl::Status Damaged(const std::string& file, const std::string& why) {
  return absl::DataLossError(
      absl::StrCat("file ", Printable(file), " is damaged: ", why));
}

// The parts of a key such as "fc2.weight[0:1048576]".
struct NamedRange {
  std::string_view tensor;
  uint64_t first = 0;
  uint64_t end = 0;
};

std::optional<NamedRange> RangeIn(std::string_view key) {
  const size_t open = key.rfind('[');
  if (open == key.npos || key.back() != ']') return std::nullopt;
  const std::string inside(key.substr(open + 1, key.size() - open - 2));
  const std::vector<std::string> parts = absl::StrSplit(inside, ':');
  NamedRange range = {.tensor = key.substr(0, open)};
  const bool ok = parts.size() == 2 && absl::SimpleAtoi(parts[0], &range.first) &&
                  absl::SimpleAtoi(parts[1], &range.end) && range.first < range.end;
  return ok ? std::optional(range) : std::nullopt;
}

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
  absl::Status read;
  try {
    read = reader->ReadHeads();
    if (read.ok()) read = reader->FindPieces();
  } catch (const std::bad_alloc&) {
    read = absl::ResourceExhaustedError("there is too little memory to read its heads");
  }
  SYNCLINE_RETURN_IF_ERROR(reader->About(read));
  return reader;
}

absl::Status CheckpointReader::ReadHeads() {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Blob> blobs, ListParts(store_, manifest_));
  for (size_t file = 0; file < manifest_.files.size(); ++file) {
    const std::string& name = manifest_.files[file].name;
    const auto blob =
        std::ranges::find(blobs, BlobOf(manifest_, manifest_.files[file]), &Blob::name);
    if (blob == blobs.end()) {
      return Damaged(name, "it is missing, or not a regular file");
    }
    SYNCLINE_RETURN_IF_ERROR(ReadHead(file, blob->bytes));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::ReadHead(size_t index, uint64_t bytes) {
  const CheckpointFile& file = manifest_.files[index];
  if (bytes != file.bytes) {
    return Damaged(file.name, absl::StrCat("it has ", bytes, " bytes, and the manifest ",
                                           "says ", file.bytes));
  }
  if (file.head_bytes > kMaxHeadBytes) {
    return Damaged(file.name, absl::StrCat("a head of ", file.head_bytes, " bytes"));
  }
  std::string head(file.head_bytes, '\0');
  const MutableByteView view = std::as_writable_bytes(std::span(head));
  SYNCLINE_RETURN_IF_ERROR(store_.Read(BlobOf(manifest_, file), 0, view));
  if (Crc32c(view) != file.head_crc32c) {
    return Damaged(file.name, "its head has another checksum");
  }
  return ReadEntries(index, head);
}

absl::Status CheckpointReader::ReadEntries(size_t index, const std::string& bytes) {
  const CheckpointFile& file = manifest_.files[index];
  const auto head = ParseHead(bytes, file.bytes - file.head_bytes);
  if (!head.ok()) return Damaged(file.name, std::string(head.status().message()));
  for (const auto& [key, where] : head->entries) {
    const auto text = head->metadata.find(key);
    const auto mark =
        text == head->metadata.end() ? std::nullopt : EntryMark::Parse(text->second);
    if (!mark || mark->bytes > where.end - where.begin) {
      return Damaged(file.name,
                     absl::StrCat("entry '", Printable(key), "' has no checksum"));
    }
    const bool is_state = !IsShared(file) && !file.name.starts_with(kWeightsFile);
    Entries& entries = is_state ? state_ : weights_;
    const Entry entry = {.file = index, .where = where, .mark = *mark};
    if (entries.emplace(key, entry).second) continue;
    return Damaged(file.name,
                   absl::StrCat("'", Printable(key), "' is in another file, too"));
  }
  return absl::OkStatus();
}

// ---- The pieces of each tensor ----

absl::Status CheckpointReader::FindPieces() {
  std::map<std::string_view, uint32_t> numbers;
  for (uint32_t i = 0; i < manifest_.tensors.size(); ++i) {
    numbers[manifest_.tensors[i].name] = i;
  }
  pieces_.resize(manifest_.tensors.size());
  for (const auto& [key, entry] : weights_) {
    const std::string& file = manifest_.files[entry.file].name;
    Piece piece = {.key = key};
    auto tensor = numbers.find(key);
    if (tensor != numbers.end()) {
      piece.elements = TensorShape(manifest_.tensors[tensor->second].shape).elements();
    } else if (const auto range = RangeIn(key)) {
      tensor = numbers.find(range->tensor);
      piece.first = range->first;
      piece.elements = range->end - range->first;
    }
    if (tensor == numbers.end()) {
      return Damaged(file,
                     absl::StrCat("'", Printable(key), "' belongs to no tensor that the ",
                                  "manifest names"));
    }
    const CheckpointTensor& about = manifest_.tensors[tensor->second];
    if (const absl::Status fits = CheckPiece(about, piece); !fits.ok()) {
      return Damaged(file, std::string(fits.message()));
    }
    pieces_[tensor->second].push_back(std::move(piece));
  }
  for (size_t i = 0; i < pieces_.size(); ++i) {
    SYNCLINE_RETURN_IF_ERROR(CheckPieces(manifest_.tensors[i], pieces_[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::CheckPiece(const CheckpointTensor& tensor,
                                          const Piece& piece) const {
  const Entry& entry = weights_.at(piece.key);
  const EntryMark& mark = entry.mark;
  const std::string which = absl::StrCat("'", Printable(piece.key), "' ");
  const uint64_t all = TensorShape(tensor.shape).elements();
  if (piece.elements > all || piece.first > all - piece.elements) {
    return absl::DataLossError(absl::StrCat(which, "is beyond its tensor"));
  }
  if (entry.where.dtype != "F32" || mark.bytes != piece.elements * sizeof(float)) {
    return absl::DataLossError(absl::StrCat(which, "has ", mark.bytes, " bytes of ",
                                            Printable(entry.where.dtype)));
  }
  if (!tensor.frozen && mark.version != manifest_.name.step) {
    return absl::DataLossError(absl::StrCat(which, "is of step ", mark.version));
  }
  const bool counts = std::isfinite(mark.samples) && mark.samples >= 0 &&
                      std::isfinite(mark.parting_samples) && mark.parting_samples >= 0 &&
                      std::isfinite(mark.rate_factor) && mark.rate_factor >= 0;
  // `updates` is not compared with the step: a job may start with the state of another
  // one and then has more updates than steps.
  if (counts) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(which, "makes no sense: ", mark.samples,
                                          " and ", mark.parting_samples,
                                          " samples, rates times ", mark.rate_factor));
}

absl::Status CheckpointReader::CheckPieces(const CheckpointTensor& tensor,
                                           std::vector<Piece>& pieces) const {
  std::ranges::sort(pieces, {}, &Piece::first);
  const uint64_t all = TensorShape(tensor.shape).elements();
  uint64_t end = 0;
  for (const Piece& piece : pieces) {
    if (piece.first != end) break;
    end += piece.elements;
  }
  const bool is_whole = end == all && (all == 0 || !pieces.empty());
  if (is_whole && (all == 0 || pieces.back().first + pieces.back().elements == all)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("it lacks the weights of '",
                                          Printable(tensor.name), "' from element ", end,
                                          " on, or has some of them twice"));
}

absl::Status CheckpointReader::CheckTensors(
    const std::vector<CheckpointTensor>& tensors) const {
  const auto differs = [&](const std::string& what) {
    return About(absl::FailedPreconditionError(
        absl::StrCat(what,
                     "; start with the model that it was made of, or start over "
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

absl::StatusOr<std::vector<std::byte>> CheckpointReader::ReadBytes(
    const std::string& key, const Entry& entry) const {
  const CheckpointFile& file = manifest_.files[entry.file];
  std::vector<std::byte> bytes(entry.where.end - entry.where.begin);
  SYNCLINE_RETURN_IF_ERROR(About(
      store_.Read(BlobOf(manifest_, file), file.head_bytes + entry.where.begin, bytes)));
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

// Appends a slice of a piece to the block: its weights, and the view and the sum of
// pushes if the checkpoint has them.
absl::Status CheckpointReader::Join(const Piece& piece, const Slice& slice,
                                    BlockSnapshot& saved) const {
  const struct {
    const Entries& entries;
    std::string key;
    std::vector<float>& to;
  } parts[] = {{weights_, piece.key, saved.weights},
               {state_, piece.key + kViewOf, saved.view},
               {state_, piece.key + kSumOf, saved.accumulator}};
  for (const auto& part : parts) {
    SYNCLINE_ASSIGN_OR_RETURN(std::vector<float> values,
                              ReadFloats(part.entries, part.key));
    if (values.empty()) continue;
    if (values.size() != piece.elements) {
      return About(absl::DataLossError(
          absl::StrCat("'", Printable(part.key), "' has ", values.size(), " elements")));
    }
    const auto from = values.begin() + static_cast<ptrdiff_t>(slice.first);
    part.to.insert(part.to.end(), from, from + static_cast<ptrdiff_t>(slice.elements));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::JoinState(const Piece& piece, const Slice& slice,
                                         const CheckpointLayout& layout,
                                         const ShardBlock& block,
                                         BlockSnapshot& saved) const {
  const std::vector<std::string> slots = layout.SlotsOf(block.range.tensor);
  saved.state.resize(slots.size());
  const bool is_whole = slice.elements == piece.elements;
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const std::string name = absl::StrCat(piece.key, "/", slots[slot]);
    const auto state = state_.find(name);
    if (state == state_.end()) {
      return About(absl::FailedPreconditionError(absl::StrCat(
          "it lacks '", Printable(name),
          "': it was made with another optimizer; start with that one, or start over "
          "(--resume never)")));
    }
    SYNCLINE_ASSIGN_OR_RETURN(const auto bytes, ReadBytes(name, state->second));
    std::vector<std::byte>& to = saved.state[slot];
    if (is_whole) {
      to.insert(to.end(), bytes.begin(), bytes.end());
      continue;
    }
    const StateType type = layout.StateTypeOf(block.range.tensor, slot);
    const size_t first = StateBytes(type, slice.first);
    const size_t end = StateBytes(type, slice.first + slice.elements);
    if (slice.first % kStateRun != 0 ||
        bytes.size() != StateBytes(type, piece.elements)) {
      return About(absl::FailedPreconditionError(
          absl::StrCat("'", Printable(name), "' cannot be split where this version of ",
                       "Syncline splits it; resume with the version that wrote it")));
    }
    to.insert(to.end(), bytes.begin() + static_cast<ptrdiff_t>(first),
              bytes.begin() + static_cast<ptrdiff_t>(end));
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardSnapshot> CheckpointReader::Read(
    const ShardBlock& block, const CheckpointLayout& layout) const {
  ShardSnapshot part = {.loss_scale = manifest_.loss_scaler.scale};
  BlockSnapshot& saved = part.blocks[block.block];
  saved.seeded = true;
  const uint64_t begin = block.range.first_element;
  const uint64_t end = begin + block.range.elements;
  const EntryMark* first = nullptr;
  for (const Piece& piece : pieces_.at(block.range.tensor)) {
    const uint64_t from = std::max(begin, piece.first);
    const uint64_t to = std::min(end, piece.first + piece.elements);
    if (from >= to) continue;
    const EntryMark& mark = weights_.at(piece.key).mark;
    if (first == nullptr) first = &mark;
    if (!mark.IsAsFarAs(*first)) {
      return About(absl::FailedPreconditionError(absl::StrCat(
          "'", Printable(piece.key), "' has a different progress from the piece before; ",
          "resume with the version of Syncline that wrote it")));
    }
    const Slice slice = {.first = from - piece.first, .elements = to - from};
    SYNCLINE_RETURN_IF_ERROR(Join(piece, slice, saved));
    SYNCLINE_RETURN_IF_ERROR(JoinState(piece, slice, layout, block, saved));
  }
  if (first == nullptr) {
    return About(absl::DataLossError(
        absl::StrCat("it lacks the weights of '", layout.KeyOf(block.range), "'")));
  }
  saved.version = first->version;
  saved.updates = first->updates;
  saved.accumulated_samples = first->samples;
  saved.accumulated_parting_samples = first->parting_samples;
  saved.rate_factor = first->rate_factor;
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
  return absl::OkStatus();
}

absl::Status CheckpointReader::Export(BlobStore& store, const std::string& file) const {
  SafetensorsHead head;
  size_t head_bytes = kMaxHeadBytesWithoutEntries;
  uint64_t end = 0;
  for (const CheckpointTensor& tensor : manifest_.tensors) {
    const uint64_t begin = end;
    end += TensorShape(tensor.shape).elements() * sizeof(float);
    head.entries[tensor.name] = {
        .dtype = "F32", .shape = tensor.shape, .begin = begin, .end = end};
    head_bytes += MaxEntryBytes(tensor.name);
  }
  head.metadata = {{"job", manifest_.job}, {"checkpoint", manifest_.name.ToString()}};
  head_bytes = (head_bytes + 12 * manifest_.job.size() + 63) / 64 * 64;
  SYNCLINE_ASSIGN_OR_RETURN(const auto writer, store.Create(file, head_bytes));
  for (const std::vector<Piece>& pieces : pieces_) {
    for (const Piece& piece : pieces) {
      SYNCLINE_ASSIGN_OR_RETURN(const auto bytes,
                                ReadBytes(piece.key, weights_.at(piece.key)));
      SYNCLINE_RETURN_IF_ERROR(writer->Append(bytes));
    }
  }
  const std::string written = WriteHead(head, head_bytes);
  return writer->Finish(std::as_bytes(std::span(written)));
}

}  // namespace syncline
