#include "worker/client/push_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "comm/base/check.h"
#include "comm/base/job_seed.h"
#include "comm/base/tiling.h"
#include "worker/client/device_ways.h"

namespace syncline {

PushEncoder::PushEncoder(const ExchangeOptions& options,
                         std::span<const uint64_t> elements, BufferPool& pool)
    : options_(options),
      pool_(pool),
      chooser_(options, elements),
      thresholds_(elements.size()),
      squares_(elements.size()) {
  for (size_t i = 0; i < elements.size(); ++i) {
    const Transfer& push = options.transfers[i].push;
    kept_.emplace_back(push.memory, push.compresses() ? elements[i] : 0);
  }
}

std::optional<Payload> PushEncoder::Repeated(const GradientBlock& contribution) {
  const auto sent = sent_.find(contribution.block);
  if (sent == sent_.end()) return std::nullopt;
  const auto& [payload, epoch] = sent->second;
  if (epoch == contribution.label.epoch) return payload;
  return Relabel(payload, contribution.label.range.elements, contribution.label.epoch,
                 pool_);
}

std::shared_ptr<EncodeWork> PushEncoder::Ask(const GradientBlock& contribution) {
  const Transfer& transfer = options_.transfers[contribution.label.range.tensor].push;
  if (!transfer.compresses()) return AskDense(contribution, *transfer.codec);
  if (!transfer.CompressesAt(contribution.label.step)) {
    return AskDense(contribution, *transfer.dense);
  }
  return AskCompressed(contribution, transfer);
}

Payload PushEncoder::Take(EncodeWork& work) {
  const auto& [block, label, gradient, units] = work.contribution();
  const uint32_t tensor = label.range.tensor;
  cost_.values += work.cost().values;
  cost_.time += work.cost().time;
  if (work.held_up_exchange()) cost_here_ += work.cost().time;
  if (!work.status().ok()) return {};
  if (work.IsSurvey()) {
    thresholds_[tensor] = {.step = label.step, .value = work.threshold()};
    return {};
  }
  Payload payload = work.TakePayload();
  if (!work.IsCompressed()) return payload;
  for (const GradientMemory::Squares& squares : work.squares()) Keep(squares, tensor);
  payload = Fitted(std::move(payload), work.room());
  sent_[block] = {.payload = payload, .epoch = label.epoch};
  if (chooser_.Chooses(tensor)) Measure(work, payload);
  return payload;
}

Payload PushEncoder::Encode(const GradientBlock& contribution) {
  if (auto payload = Repeated(contribution)) return *std::move(payload);
  while (true) {
    const std::shared_ptr<EncodeWork> work = Ask(contribution);
    work->Run(workspace_);
    Payload payload = Take(*work);
    if (!work->IsSurvey() || !work->status().ok()) return payload;
  }
}

// A block that was not sent is encoded first. So in both cases the error feedback finally
// is its previous value plus the gradient.
void PushEncoder::TakeBack(const GradientBlock& contribution) {
  const uint32_t tensor = contribution.label.range.tensor;
  const Transfer& transfer = options_.transfers[tensor].push;
  if (!kept_[tensor].keeps()) return;
  const uint64_t first_of_block = contribution.label.range.first_element;
  if (!transfer.CompressesAt(contribution.label.step)) {
    GradientMemory& memory = kept_[tensor].OnHost();
    const uint32_t elements = contribution.label.range.elements;
    for (uint32_t tile = 0; tile < TilesOf(elements); ++tile) {
      const size_t first = size_t{tile} * kTileElements;
      memory.TakeBack({.gradient = Read(contribution, first_of_block + first,
                                        TileElements(elements, tile)),
                       .context = {.first_element = first_of_block + first},
                       .units = contribution.units});
    }
    return;
  }
  EncodeUnsent(contribution);
  if (!sent_.contains(contribution.block)) return;  // the GPU failed; the session ends
  GradientMemory& memory = kept_[tensor].OnHost();
  const auto& [payload, epoch] = sent_.at(contribution.block);
  BlockLabel label = contribution.label;
  label.epoch = epoch;
  const Buffer bytes = Gather(payload);
  const auto view = ParseBlock(bytes.view(), label, transfer.Accepted());
  SYNCLINE_CHECK(view.ok());  // this encoder wrote the bytes
  for (const TileView& tile : view->tiles) {
    std::vector<float> values(tile.elements);
    SYNCLINE_CHECK(tile.codec->Decode(tile.bytes, values).ok());
    memory.TakeBack({.gradient = values,
                     .context = {.first_element = first_of_block + tile.first_element},
                     .units = contribution.units});
  }
}

void PushEncoder::EncodeUnsent(const GradientBlock& contribution) {
  const uint32_t tensor = contribution.label.range.tensor;
  const Transfer& transfer = options_.transfers[tensor].push;
  const bool is_encoded = kept_[tensor].keeps() &&
                          transfer.CompressesAt(contribution.label.step) &&
                          !sent_.contains(contribution.block);
  if (is_encoded) Encode(contribution);
}

absl::Status PushEncoder::kept_status() const {
  absl::Status status;
  for (const KeptGradient& kept : kept_) status.Update(kept.status());
  return status;
}

std::span<const float> PushEncoder::Settle(uint32_t tensor, const GradientUnits& units) {
  const std::span<const float> left = kept_[tensor].OnHost().Settle(units);
  const bool is_empty = std::ranges::all_of(left, [](float value) { return value == 0; });
  return is_empty ? std::span<const float>() : left;
}

// Adds squared norms to the tensor's sums, in which older ones fade.
void PushEncoder::Keep(const GradientMemory::Squares& squares, uint32_t tensor) {
  constexpr double kFading = 0.9;
  GradientMemory::Squares& of_tensor = squares_[tensor];
  const GradientMemory::Squares before = of_tensor;
  of_tensor.gradient = kFading * before.gradient + squares.gradient;
  of_tensor.residual = kFading * before.residual + squares.residual;
  all_squares_.gradient += of_tensor.gradient - before.gradient;
  all_squares_.residual += of_tensor.residual - before.residual;
}

double PushEncoder::residual_ratio() const {
  if (all_squares_.gradient <= 0) return 0;
  return std::sqrt(std::max(0.0, all_squares_.residual) / all_squares_.gradient);
}

GradientBlock PushEncoder::Labelled(GradientBlock contribution) const {
  contribution.label.seed = SeedOfRank(options_.seed, options_.rank);
  return contribution;
}

// Nothing is lent in modes in which workers run ahead or may be left out of a step: a
// server could read a gradient that the program is overwriting.
Slice PushEncoder::LentValues(const GradientBlock& contribution,
                              const Codec& codec) const {
  if (!options_.keeper_of || !options_.mode.is_lockstep()) return {};
  if (!IsEncodingOf(codec, contribution.gradient.dtype())) return {};
  const BlockRange& range = contribution.label.range;
  const ByteView bytes = contribution.gradient.Bytes(range.first_element, range.elements);
  return {bytes.data(), bytes.size(), options_.keeper_of(contribution.gradient.bytes())};
}

std::shared_ptr<std::byte> PushEncoder::LentMemory(size_t bytes) const {
  return options_.push_memory ? options_.push_memory(bytes) : nullptr;
}

std::shared_ptr<std::byte> PushEncoder::Memory(size_t bytes) const {
  std::shared_ptr<std::byte> memory = LentMemory(bytes);
  return memory == nullptr ? pool_.Allocate(bytes).owner() : memory;
}

std::span<const float> PushEncoder::Read(const GradientBlock& contribution,
                                         uint64_t first, size_t elements) {
  if (!contribution.gradient.IsReadInPlace()) workspace_.tile.resize(kTileElements);
  return contribution.gradient.Read(first, elements, workspace_.tile);
}

std::shared_ptr<EncodeWork> PushEncoder::AskDense(const GradientBlock& contribution,
                                                  const Codec& codec) {
  EncodeWork::Dense dense = {.codec = &codec,
                             .checksum = options_.checksum,
                             .pool = &pool_,
                             .lent = LentValues(contribution, codec)};
  if (dense.lent.owner != nullptr) {
    return std::make_shared<EncodeWork>(WorkOptions(), Labelled(contribution),
                                        std::move(dense));
  }
  const size_t bytes = MaxBlockBytes(codec, contribution.label.range.elements);
  dense.memory = LentMemory(bytes);
  const bool is_borrowed =
      codec.id() == CodecId::kFp32 && contribution.gradient.IsReadInPlace();
  if (dense.memory == nullptr && !is_borrowed) dense.memory = Memory(bytes);
  return std::make_shared<EncodeWork>(WorkOptions(), Labelled(contribution),
                                      std::move(dense));
}

// The threshold of a tensor is computed once per step, before its first block changes the
// error feedback.
std::shared_ptr<EncodeWork> PushEncoder::AskCompressed(const GradientBlock& contribution,
                                                       const Transfer& given) {
  const auto& [tensor, first, elements] = contribution.label.range;
  const uint64_t step = contribution.label.step;
  if (chooser_.WantsToSee(tensor, step) && first == 0) {
    chooser_.Saw(tensor, Read(contribution, 0, TileElements(elements, 0)));
  }
  const Transfer& transfer = chooser_.TransferAt(tensor, step);
  const uint64_t count = transfer.TensorTopCount(contribution.gradient.size(), step);
  const Threshold& threshold = thresholds_[tensor];
  if (count > 0 && threshold.step != step) {
    return std::make_shared<EncodeWork>(
        WorkOptions(), contribution,
        EncodeWork::Survey{.kept = &kept_[tensor].OnHost(), .count = count});
  }
  const std::optional<EncodeWork::OnDevice> on_device = OnDevice(contribution, transfer);
  const size_t room = MaxBlockBytes(given.Accepted(), elements);
  return std::make_shared<EncodeWork>(
      WorkOptions(), Labelled(contribution),
      EncodeWork::Compressed{.transfer = transfer,
                             .checksum = options_.checksum,
                             .kept = on_device ? nullptr : &kept_[tensor].OnHost(),
                             .on_device = on_device,
                             .threshold = count > 0 ? threshold.value : 0,
                             .memory = Memory(room),
                             .room = room});
}

// All requests of a tensor in one step get the same answer, so its error feedback does
// not move between them.
std::optional<EncodeWork::OnDevice> PushEncoder::OnDevice(
    const GradientBlock& contribution, const Transfer& transfer) {
  const ConstMemoryView& gradient = contribution.gradient;
  const bool is_near = gradient.device() != nullptr && IsAlignedForDevice(gradient);
  KeptGradient& kept = kept_[contribution.label.range.tensor];
  if (!is_near) return {};
  const std::optional<SynclineCudaCodec> encoder = PushEncoderOnDevice(transfer);
  if (!encoder) return {};
  const auto place = kept.OnDevice(*gradient.device());
  if (!place) return {};
  return EncodeWork::OnDevice{.encoder = *encoder,
                              .kept = *place,
                              .decay = static_cast<float>(kept.spec().decay)};
}

// Copies a short encoding into memory of its own size. The room is that of the longest
// encoding, and would otherwise be occupied until the step is over.
Payload PushEncoder::Fitted(Payload payload, size_t room) const {
  const size_t bytes = PayloadBytes(payload);
  if (2 * bytes > room) return payload;
  std::shared_ptr<std::byte> memory = Memory(bytes);
  size_t used = 0;
  for (const Slice& slice : payload) {
    std::memcpy(memory.get() + used, slice.data, slice.size);
    used += slice.size;
  }
  const std::byte* data = memory.get();
  return {Slice{data, bytes, std::move(memory)}};
}

// Sometimes decodes a tile here to measure the cost. Servers decode with the same code,
// and are assumed to be similar machines.
void PushEncoder::Measure(const EncodeWork& work, const Payload& payload) {
  constexpr uint64_t kDecodeEvery = 16;  // steps between two measurements of decoding
  if (options_.clock == nullptr) return;
  const BlockLabel& label = work.contribution().label;
  chooser_.Encoded(label.range.tensor, {.values = label.range.elements,
                                        .bytes = PayloadBytes(payload),
                                        .time = work.cost().time});
  if (label.step % kDecodeEvery != 0 || label.range.first_element != 0) return;
  const Buffer bytes = Gather(payload);
  const auto view = ParseBlock(bytes.view(), label, work.transfer().Accepted());
  if (!view.ok()) return;
  const TileView& tile = view->tiles.front();
  std::vector<float> sum(tile.elements);
  CodecCost cost;
  {
    const CodecTimer timer(options_.clock, tile.elements, cost);
    SYNCLINE_CHECK(tile.codec->DecodeAdd(tile.bytes, 1, sum).ok());
  }
  chooser_.Decoded(label.range.tensor, {.values = cost.values, .time = cost.time});
}

}  // namespace syncline
