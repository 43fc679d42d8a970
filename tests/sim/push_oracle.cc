#include "tests/sim/push_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>

#include "comm/base/check.h"
#include "comm/base/tiling.h"
#include "comm/compression/residual_rate.h"

namespace syncline::sim {

bool ResidualsFollow(const JobSpec& job) {
  const TrainingSettings& training = job.training;
  return !training.sync().skips_versions() &&
         ResidualsFollowRate(training.optimizer.name, training.gradient);
}

namespace {

bool IsFinite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

// The basis of the means over senders, as in server/shard/step.cc.
const CodecBasis* BasisOf(const Transfer& transfer) {
  return transfer.mean_of_senders ? transfer.codec->basis() : nullptr;
}

}  // namespace

std::vector<float> Travel(const Codec& codec, const EncodeContext& context,
                          std::span<float> values, std::vector<std::byte>* wire) {
  std::vector<std::byte> bytes(
      codec.MaxEncodedBytes(static_cast<uint32_t>(values.size())));
  bytes.resize(codec.Encode(values, values, context, bytes));
  std::vector<float> received(values.size());
  SYNCLINE_CHECK(codec.Decode(bytes, received).ok());
  if (wire != nullptr) *wire = std::move(bytes);
  return received;
}

// Each process of a worker starts without error feedback.
PushOracle::PushOracle(const Options& options)
    : options_(options),
      residual_(options.elements),
      velocity_(options.elements),
      notes_(TilesOf(options.elements)) {}

PushOracle::TileNotes& PushOracle::NotesOf(const Tile& tile) {
  return notes_[tile.first / kTileElements];
}

// Whether the error feedback is added to the tile. At a learning rate of 0 it waits.
bool PushOracle::Joins(const Tile& tile) {
  return Keeps() && (NotesOf(tile).rate == 0 || tile.rate > 0 || !options_.follows);
}

float PushOracle::CarryOf(const Tile& tile) {
  const TileNotes& notes = NotesOf(tile);
  const float loss_scale = tile.loss_scale / notes.loss_scale;
  const bool follows = options_.follows && notes.rate > 0 && tile.rate > 0;
  return follows ? loss_scale * (notes.rate / tile.rate) : loss_scale;
}

PushOracle::Sum PushOracle::Gather(const Tile& tile) {
  Sum sum = {.x = {tile.gradient.begin(), tile.gradient.end()}};
  if (!Joins(tile)) return sum;
  const MemorySpec& memory = options_.transfer.memory;
  const float carry = CarryOf(tile);
  const float carry_velocity = tile.loss_scale / NotesOf(tile).loss_scale;
  const auto decay = static_cast<float>(memory.decay);
  const auto momentum = static_cast<float>(memory.momentum);
  for (size_t i = 0; i < sum.x.size(); ++i) {
    const float kept = residual_[tile.first + i];
    const float g = tile.gradient[i];
    if (!Corrects()) {
      sum.x[i] = g + decay * carry * kept;
      continue;
    }
    const float u = carry_velocity * velocity_[tile.first + i];
    const float share = memory.nesterov ? momentum : 1.0f;
    sum.velocity.push_back(momentum * u + share * g);
    const float ahead = memory.nesterov ? g : 0.0f;
    sum.x[i] = carry * kept + sum.velocity[i] + ahead;
  }
  return sum;
}

std::vector<float> PushOracle::Send(const Tile& tile, std::vector<float>& added) {
  const Transfer& transfer = options_.transfer;
  EncodeContext context = {.seed = options_.seed,
                           .step = tile.step,
                           .tensor = options_.tensor,
                           .first_element = tile.first,
                           .threshold = tile.threshold};
  std::vector<float> gradient(tile.gradient.begin(), tile.gradient.end());
  const auto travel = [&](const Codec& codec, std::span<float> values) {
    std::vector<std::byte> wire;
    std::vector<float> received = Travel(codec, context, values, &wire);
    added = received;
    const CodecBasis* const basis = BasisOf(transfer);
    if (basis == nullptr) return received;
    if (codec.basis() == nullptr) {
      basis->ToCoefficients(tile.first, added);
    } else {
      SYNCLINE_CHECK(codec.basis()->DecodeCoefficients(wire, tile.first, added).ok());
    }
    return received;
  };
  if (!transfer.CompressesAt(tile.step)) {
    const Codec& codec = transfer.compresses() ? *transfer.dense : *transfer.codec;
    return travel(codec, gradient);
  }
  Sum sum = Gather(tile);
  const bool joins = Joins(tile);
  const float largest = transfer.codec->traits().largest;
  const bool fits =
      std::ranges::all_of(sum.x, [&](float value) { return std::abs(value) <= largest; });
  if (!IsFinite(sum.x) || (!joins && !fits)) {
    return travel(*transfer.dense, gradient);
  }
  if (!fits) {
    const float most = transfer.dense->traits().largest;
    for (float& value : sum.x) value = std::clamp(value, -most, most);
  }
  TileNotes& notes = NotesOf(tile);
  notes.of_codec.resize(
      transfer.codec->MemoryValues(static_cast<uint32_t>(sum.x.size())));
  if (fits) context.memory = notes.of_codec;
  std::vector<float> left = sum.x;
  std::vector<float> received = travel(fits ? *transfer.codec : *transfer.dense, left);
  if (!joins) return received;
  notes.loss_scale = tile.loss_scale;
  notes.rate = tile.rate;
  std::ranges::copy(left, residual_.begin() + static_cast<ptrdiff_t>(tile.first));
  for (size_t i = 0; Corrects() && i < left.size(); ++i) {
    const bool was_sent = left[i] != sum.x[i];
    velocity_[tile.first + i] = was_sent ? 0 : sum.velocity[i];
  }
  return received;
}

// Returns everything that would still be sent without further gradients: the residual,
// and with momentum m u + m^2 u + ...
std::vector<float> PushOracle::Part(const Tile& tile) {
  const auto momentum = static_cast<float>(options_.transfer.memory.momentum);
  const float rest =
      tile.loss_scale / NotesOf(tile).loss_scale * momentum / (1 - momentum);
  std::vector<float> left;
  for (size_t i = 0; i < tile.gradient.size(); ++i) {
    const float kept = CarryOf(tile) * residual_[tile.first + i];
    left.push_back(Corrects() ? kept + rest * velocity_[tile.first + i] : kept);
  }
  return left;
}

void PushOracle::TakeBack(const Tile& tile, std::span<const float> sent) {
  if (!options_.transfer.compresses() || !Joins(tile) || !IsFinite(sent)) return;
  const float carry = CarryOf(tile);
  TileNotes& notes = NotesOf(tile);
  for (size_t i = 0; i < sent.size(); ++i) {
    residual_[tile.first + i] = carry * residual_[tile.first + i] + sent[i];
    velocity_[tile.first + i] *= tile.loss_scale / notes.loss_scale;
  }
  notes.loss_scale = tile.loss_scale;
  notes.rate = tile.rate;
}

float PushOracle::ThresholdOf(std::span<const Tile> tiles) {
  const uint64_t count =
      options_.transfer.TensorTopCount(options_.elements, tiles.front().step);
  if (count == 0) return 0;
  TensorHistogram histogram;
  for (const Tile& tile : tiles) {
    const Sum sum = Gather(tile);
    histogram.Add(IsFinite(sum.x) ? std::span<const float>(sum.x) : tile.gradient);
  }
  return histogram.ThresholdFor(count);
}

std::vector<float> PushOracle::Receive(const Reference::Push& push, uint64_t step,
                                       float rate, Fate fate) {
  if (options_.transfer.chooses()) return push.sent;
  const std::vector<float> nothing(push.parting ? options_.elements : 0);
  std::vector<Tile> tiles;
  for (uint32_t i = 0; i < notes_.size(); ++i) {
    const uint64_t first = uint64_t{i} * kTileElements;
    const std::span<const float> values = push.parting ? nothing : push.gradient;
    tiles.push_back(
        {.gradient = values.subspan(first, TileElements(options_.elements, i)),
         .first = first,
         .step = step,
         .loss_scale = push.loss_scale,
         .rate = options_.follows ? rate : 0});
  }
  const float threshold =
      push.parting || tiles.empty() || !options_.transfer.CompressesAt(step)
          ? 0
          : ThresholdOf(tiles);
  std::vector<float> received;
  for (Tile& tile : tiles) {
    tile.threshold = threshold;
    std::vector<float> added;
    const std::vector<float> of_tile = push.parting ? Part(tile) : Send(tile, added);
    if (push.parting) {
      added = of_tile;
      if (const CodecBasis* const basis = BasisOf(options_.transfer); basis != nullptr) {
        basis->ToCoefficients(tile.first, added);
      }
    }
    std::ranges::copy(added, std::back_inserter(received));
    if (fate != Fate::kLate || push.parting) continue;
    const bool was_encoded = options_.transfer.CompressesAt(step);
    TakeBack(tile, was_encoded ? std::span<const float>(of_tile) : tile.gradient);
  }
  return received;
}

void DivideBySenders(const Transfer& transfer, std::span<const float> weights,
                     uint64_t first_element, std::span<float> sum) {
  if (!transfer.mean_of_senders) return;
  for (size_t i = 0; i < sum.size(); ++i) {
    if (weights[i] > 0) sum[i] /= weights[i];
  }
  const CodecBasis* const basis = BasisOf(transfer);
  if (basis == nullptr) return;
  for (size_t first = 0; first < sum.size(); first += kTileElements) {
    const size_t n = std::min<size_t>(kTileElements, sum.size() - first);
    basis->FromCoefficients(first_element + first, sum.subspan(first, n));
  }
}

}  // namespace syncline::sim
