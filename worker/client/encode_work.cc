#include "worker/client/encode_work.h"

#include <algorithm>
#include <utility>

#include "comm/base/tiling.h"

namespace syncline {

EncodeWork::EncodeWork(const Options& options, const GradientBlock& contribution,
                       Dense dense)
    : options_(options), contribution_(contribution), dense_(std::move(dense)) {}

EncodeWork::EncodeWork(const Options& options, const GradientBlock& contribution,
                       Compressed compressed)
    : options_(options),
      contribution_(contribution),
      compressed_(std::move(compressed)) {}

EncodeWork::EncodeWork(const Options& options, const GradientBlock& contribution,
                       Survey survey)
    : options_(options), contribution_(contribution), survey_(survey) {}

bool EncodeWork::IsShort() const {
  if (contribution_.gradient.device() != nullptr) return false;  // Run waits for the GPU
  if (survey_) return contribution_.gradient.size() < kTileElements;
  const bool is_copy =
      dense_ && (dense_->codec->id() == CodecId::kFp32 ||
                 IsEncodingOf(*dense_->codec, contribution_.gradient.dtype()));
  return is_copy || contribution_.label.range.elements < kTileElements;
}

void EncodeWork::Run(CodecWorkspace& workspace) {
  TraceTrack* const track = options_.is_traced ? workspace.trace : nullptr;
  const bool is_traced = track != nullptr && track->IsOpen(options_.job);
  const int64_t began = is_traced ? track->Now() : 0;
  held_up_exchange_ = workspace.is_of_exchange;
  if (dense_) EncodeDense(workspace);
  if (compressed_) EncodeTiles(workspace);
  if (survey_) LookAtAll(workspace);
  if (Device* const device = contribution_.gradient.device()) {
    status_.Update(device->status());
  }
  if (is_traced) Trace(*track, began);
}

void EncodeWork::Trace(TraceTrack& track, int64_t began) const {
  track.Add({.begin_ns = began,
             .end_ns = track.Now(),
             .step = contribution_.label.step,
             .block = contribution_.block,
             .rank = static_cast<uint16_t>(options_.rank),
             .kind = TraceKind::kEncodeBlock});
}

std::span<const float> EncodeWork::Read(CodecWorkspace& workspace, uint64_t first,
                                        size_t elements) const {
  if (!contribution_.gradient.IsReadInPlace()) workspace.tile.resize(kTileElements);
  if (fetched_) {
    const uint64_t offset = first - contribution_.label.range.first_element;
    return fetched_->Read(offset, elements, workspace.tile);
  }
  return contribution_.gradient.Read(first, elements, workspace.tile);
}

void EncodeWork::EncodeDense(CodecWorkspace& workspace) {
  const BlockLabel& label = contribution_.label;
  const auto [tensor, begin, elements] = label.range;
  const auto& [codec, checksum, memory, pool, lent] = *dense_;
  if (lent.owner != nullptr) {
    payload_ = LendBlock(*codec, label, lent, checksum, *pool);
    return;
  }
  if (memory == nullptr) {
    payload_ = EncodeBlock(
        *codec, label, contribution_.gradient.AsFloats(begin, elements), checksum, *pool);
    return;
  }
  if (IsCopiedFromDevice()) return CopyFromDevice(workspace);
  if (!Fetch(workspace)) return;
  payload_ = EncodeInto(
      std::move(dense_->memory),
      {.codec = *codec,
       .label = label,
       .values = fetched_ ? *fetched_ : contribution_.gradient.Part(begin, elements),
       .checksum = checksum},
      workspace.tile);
}

void EncodeWork::EncodeTiles(CodecWorkspace& workspace) {
  if (compressed_->on_device) return EncodeTilesOnDevice(workspace);
  if (!Fetch(workspace)) return;
  const BlockLabel& label = contribution_.label;
  const CodecTimer timer(options_.clock, label.range.elements, cost_);
  BlockWriter writer(label, compressed_->checksum, std::move(compressed_->memory));
  for (uint32_t tile = 0; tile < TilesOf(label.range.elements); ++tile) {
    const uint64_t first = uint64_t{tile} * kTileElements;
    EncodeContext context = ContextAt(label, first);
    context.threshold = compressed_->threshold;
    const GradientMemory::Squares squares = compressed_->kept->EncodeTile(
        compressed_->transfer,
        {.gradient = Read(workspace, label.range.first_element + first,
                          TileElements(label.range.elements, tile)),
         .context = context,
         .units = contribution_.units},
        writer, workspace.memory);
    if (squares.gradient > 0 || squares.residual > 0) squares_.push_back(squares);
  }
  payload_ = writer.Finish();
}

void EncodeWork::LookAtAll(CodecWorkspace& workspace) {
  const CodecTimer timer(options_.clock, 0, cost_);
  if (!workspace.histogram) workspace.histogram.emplace();
  workspace.histogram->Clear();
  const uint64_t elements = contribution_.gradient.size();
  for (uint32_t tile = 0; tile < TilesOf(elements); ++tile) {
    const uint64_t first = uint64_t{tile} * kTileElements;
    workspace.histogram->Add(survey_->kept->Preview(
        {.gradient = Read(workspace, first, TileElements(elements, tile)),
         .context = {.first_element = first},
         .units = contribution_.units},
        workspace.memory));
  }
  threshold_ = workspace.histogram->ThresholdFor(survey_->count);
}

}  // namespace syncline
