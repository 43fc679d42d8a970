// The part of EncodeWork (encode_work.h) that encodes on the GPU that holds the gradient.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/tiling.h"
#include "comm/codec/sparse/sparse.h"
#include "worker/client/device_ways.h"
#include "worker/client/encode_work.h"

namespace syncline {

bool EncodeWork::Fetch(CodecWorkspace& workspace) {
  const ConstMemoryView& gradient = contribution_.gradient;
  if (gradient.device() == nullptr) return true;
  const auto& [tensor, begin, elements] = contribution_.label.range;
  const ByteView from = gradient.Bytes(begin, elements);
  const ByteView bytes =
      workspace.QueueOf(*gradient.device()).Fetch(from.data(), from.size());
  if (bytes.empty()) return false;
  fetched_ = ConstMemoryView({bytes.data(), gradient.dtype()}, elements);
  return true;
}

bool EncodeWork::IsCopiedFromDevice() const {
  const ConstMemoryView& gradient = contribution_.gradient;
  return gradient.device() != nullptr &&
         IsDenseFromDevice(*dense_->codec, gradient.dtype());
}

void EncodeWork::CopyFromDevice(CodecWorkspace& workspace) {
  const auto& [tensor, begin, elements] = contribution_.label.range;
  const Codec& codec = *dense_->codec;
  DeviceQueue& queue = workspace.QueueOf(*contribution_.gradient.device());
  const ByteView gradient = contribution_.gradient.Bytes(begin, elements);
  ByteView rest =
      IsEncodingOf(codec, contribution_.gradient.dtype())
          ? queue.Fetch(gradient.data(), gradient.size())
          : queue.ToBf16(reinterpret_cast<const float*>(gradient.data()), elements);
  if (rest.empty()) return;
  BlockWriter writer(contribution_.label, dense_->checksum, std::move(dense_->memory));
  for (uint32_t tile = 0; tile < TilesOf(elements); ++tile) {
    const MutableByteView room = writer.NextTile(codec);
    std::ranges::copy(rest.first(room.size()), room.begin());
    rest = rest.subspan(room.size());
    writer.EndTile(room.size());
  }
  payload_ = writer.Finish();
}

void EncodeWork::EncodeTilesOnDevice(CodecWorkspace& workspace) {
  const BlockLabel& label = contribution_.label;
  const auto& [tensor, first, elements] = label.range;
  const CodecTimer timer(options_.clock, elements, cost_);
  const auto& [encoder, kept, decay] = *compressed_->on_device;
  Device& device = *contribution_.gradient.device();
  DeviceQueue& queue = workspace.QueueOf(device);
  const bool keeps = kept.residual != nullptr;
  const std::span<const ByteView> tiles = queue.Encode(
      encoder, {.gradient = contribution_.gradient.Bytes(first, elements).data(),
                .dtype = static_cast<uint32_t>(contribution_.gradient.dtype()),
                .residual = keeps ? kept.residual + first : nullptr,
                .decay = decay,
                .elements = elements,
                .now = {.seed = label.seed,
                        .step = label.step,
                        .units = {.loss_scale = contribution_.units.loss_scale,
                                  .learning_rate = contribution_.units.learning_rate}},
                .tile_units = keeps ? kept.tile_units + first / kTileElements : nullptr,
                .first_element = first,
                .tensor = tensor});
  if (!device.ok()) return;
  BlockWriter writer(label, compressed_->checksum, std::move(compressed_->memory));
  for (uint32_t tile = 0; tile < tiles.size(); ++tile) {
    if (!EndTileOnDevice(workspace, tile, tiles[tile], writer)) {
      status_ = absl::InternalError(absl::StrCat("CUDA device ", device.ordinal(),
                                                 ": its result for tensor ", tensor,
                                                 " is not a valid encoding"));
      return;
    }
    if (keeps && !tiles[tile].empty()) LookAtKept(tile);
  }
  payload_ = writer.Finish();
}

// Writes the GPU's encoding of one tile. A tile without one has values that are not
// finite; it is sent densely, as GradientMemory does.
bool EncodeWork::EndTileOnDevice(CodecWorkspace& workspace, uint32_t tile,
                                 ByteView encoded, BlockWriter& writer) {
  const BlockLabel& label = contribution_.label;
  const uint64_t first = uint64_t{tile} * kTileElements;
  const uint32_t elements = TileElements(label.range.elements, tile);
  const Transfer& transfer = compressed_->transfer;
  if (encoded.empty()) {
    const MutableByteView room = writer.NextTile(*transfer.dense);
    writer.EndTile(transfer.dense->Encode(
        Read(workspace, label.range.first_element + first, elements), {},
        ContextAt(label, first), room));
    return true;
  }
  const MutableByteView room = writer.NextTile(*transfer.codec);
  if (transfer.codec->id() == CodecId::kSparse) {
    const auto bytes = WithSmallestPositions(encoded, elements, room);
    if (bytes.ok()) writer.EndTile(*bytes);
    return bytes.ok();
  }
  if (encoded.size() > room.size()) return false;
  std::ranges::copy(encoded, room.begin());
  writer.EndTile(encoded.size());
  return true;
}

// Compares gradient and residual of a sampled tile. It does not use the thread's device
// queue, because that still holds the encoded tiles.
void EncodeWork::LookAtKept(uint32_t tile) {
  const BlockLabel& label = contribution_.label;
  const uint64_t offset = uint64_t{tile} * kTileElements;
  const EncodeContext context = ContextAt(label, offset);
  if (!GradientMemory::IsSampled(context)) return;
  const uint32_t elements = TileElements(label.range.elements, tile);
  std::vector<float> gradient(elements);
  std::vector<float> left(elements);
  const std::span<const float> values =
      contribution_.gradient.Read(context.first_element, elements, gradient);
  contribution_.gradient.device()->Read(
      compressed_->on_device->kept.residual + context.first_element,
      std::as_writable_bytes(std::span(left)));
  const GradientMemory::Squares squares =
      GradientMemory::Sample({.gradient = values, .context = context}, left);
  if (squares.gradient > 0 || squares.residual > 0) squares_.push_back(squares);
}

}  // namespace syncline
