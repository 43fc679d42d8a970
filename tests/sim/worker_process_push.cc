// The part of a simulated worker that computes and pushes, and what it does between
// steps.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "comm/base/check.h"
#include "tests/sim/worker_process.h"

namespace syncline::sim {

// Returns a number in [-1, 1) that depends on the arguments only (splitmix64).
float WorkerProcess::Noise(uint64_t seed, uint64_t rank, uint64_t step,
                           uint64_t element) {
  uint64_t x = seed ^ (rank << 56) ^ (step << 40) ^ element;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return static_cast<float>(x >> 40) * 0x1p-23f - 1.0f;
}

// Pushes all tensors, the last one first, as a backward pass does.
void WorkerProcess::PushAll(uint64_t step) {
  const uint32_t samples = std::uniform_int_distribution<uint32_t>(1, 64)(random_);
  ready_tensors_ = 0;
  computing_ = false;
  samples_ = samples;
  for (uint32_t tensor = static_cast<uint32_t>(weights_.size()); tensor-- > 0;) {
    if (failed_) return;
    if (parts_.job.tensors[tensor].group.frozen) {
      ++ready_tensors_;
      continue;
    }
    const uint64_t may_be_ahead = std::exchange(may_be_ahead_[tensor], staleness_);
    if (Skips(tensor, step)) {
      Do([&](Exchange& exchange) { return exchange.Skip(tensor, parts_.events.now()); });
      continue;
    }
    parts_.reference.Computed(rank_, tensor, step, may_be_ahead);
    gradients_[tensor] = Gradient(tensor, step);
    const ConstMemoryView gradient = Lent(tensor, InItsOwnType(tensor));
    rate_factors_[tensor] = RateFactor(tensor, step);
    exchange_->SetRateFactor(tensor, rate_factors_[tensor]);
    parts_.reference.Pushed({rank_, *incarnation_, step}, tensor,
                            {.gradient = gradients_[tensor],
                             .versions = Versions(tensor),
                             .samples = samples,
                             .loss_scale = exchange_->loss_scale(),
                             .rate_factor = rate_factors_[tensor]});
    Do([&](Exchange& exchange) {
      return exchange.Push(tensor, gradient, samples, parts_.events.now());
    });
  }
}

bool WorkerProcess::Skips(uint32_t tensor, uint64_t step) const {
  switch (parts_.skipping) {
    case Skipping::kNothing:
      return false;
    case Skipping::kAtRandom:
      return Noise(parts_.seed, rank_, step, tensor) < 0;
    case Skipping::kAlternating:
      return (step + tensor) % 2 == 0;
  }
  return false;
}

// Returns a multiple of 0.5 from 0 to 2.
float WorkerProcess::RateFactor(uint32_t tensor, uint64_t step) const {
  if (parts_.rating == Rating::kNothing) return 1;
  const uint64_t who = parts_.rating == Rating::kUnlike ? *incarnation_ : 0;
  return std::round(4 * std::abs(Noise(parts_.seed, who, step, tensor))) / 2;
}

std::vector<float> WorkerProcess::Gradient(uint32_t tensor, uint64_t step) {
  const TrainingSettings& training = parts_.job.training;
  std::vector<float> gradient = weights_[tensor];
  for (size_t i = 0; i < gradient.size(); ++i) {
    const float noise = Noise(parts_.seed, rank_, step, (uint64_t{tensor} << 32) + i);
    // Such numbers have few bits, so that sums do not depend on the order of arrival.
    gradient[i] = training.aggregation == Aggregation::kArrival
                      ? std::round(noise * 64) / 64
                      : 0.1f * gradient[i] + noise;
    gradient[i] *= exchange_->loss_scale();
  }
  if (training.ScalesLoss() && random_() % 16 == 0) {
    gradient[0] = std::numeric_limits<float>::infinity();
  }
  return gradient;
}

// Half of the workers compute in BF16.
ConstMemoryView WorkerProcess::InItsOwnType(uint32_t tensor) {
  std::vector<float>& values = gradients_[tensor];
  if (parts_.seed % 4 < 2) return values;
  std::vector<uint16_t>& narrow = narrow_gradients_[tensor];
  narrow.resize(values.size());
  Narrow(values, {.data = narrow.data(), .dtype = DType::kBf16});
  const ConstTensorMemory memory = {.data = narrow.data(), .dtype = DType::kBf16};
  Widen(memory, values);
  return {memory, values.size()};
}

ConstMemoryView WorkerProcess::Lent(uint32_t tensor, const ConstMemoryView& gradient) {
  if (lent_gradients_.empty()) return gradient;
  const size_t bytes = gradient.bytes().size();
  Buffer& memory = lent_gradients_[tensor];
  if (memory.size() < bytes) {
    memory =
        Buffer::Allocate((bytes + kTileAlignment - 1) / kTileAlignment * kTileAlignment);
  }
  std::ranges::fill(memory.mutable_view(), std::byte{0});
  std::ranges::copy(gradient.bytes(), memory.data());
  return {{.data = memory.data(), .dtype = gradient.dtype()}, gradient.size()};
}

std::shared_ptr<const void> WorkerProcess::KeeperOf(ByteView gradient) const {
  for (const Buffer& memory : lent_gradients_) {
    if (!memory.empty() && memory.data() == gradient.data()) return memory.owner();
  }
  return nullptr;
}

void WorkerProcess::SpoilLent(uint32_t tensor) {
  if (lent_gradients_.empty()) return;
  std::ranges::fill(lent_gradients_[tensor].mutable_view(), std::byte{0x4b});
}

// Records the values that were sent, if measurements choose the codec.
void WorkerProcess::NoteChoice(const ExchangeSend& send) {
  const BlockRange& range = parts_.reference.blocks()[send.header.block];
  const Transfer& transfer = transfers_[range.tensor].push;
  if (!transfer.chooses()) return;
  CodecSet codecs = transfer.Accepted();
  codecs.push_back(*parts_.codecs.Find(CodecId::kFp32));  // error feedback of a leaver
  const Buffer bytes = Gather(send.payload);
  const auto view =
      ParseBlock(bytes.view(), {range, send.header.step, send.header.epoch}, codecs);
  SYNCLINE_CHECK(view.ok());
  for (const TileView& tile : view->tiles) {
    std::vector<float> values(tile.elements);
    SYNCLINE_CHECK(tile.codec->Decode(tile.bytes, values).ok());
    parts_.reference.Sent({rank_, *incarnation_, send.header.step}, range.tensor,
                          range.first_element + tile.first_element, values);
  }
}

// ---- What a program does between steps ----

// Every few steps all wait for each other.
bool WorkerProcess::WaitsInBarrier(uint64_t step) {
  if (parts_.barrier_every == 0 || step % parts_.barrier_every != 0) return false;
  if (barrier_at_ == step) return false;
  barrier_at_ = step;
  membership_.barrier = barriers_entered_++;
  parts_.reference.Entered(rank_, *membership_.barrier);
  parts_.control.Send(connection_, BarrierEntered{*membership_.barrier});
  return true;
}

void WorkerProcess::OnReleased(const BarrierReleased& released) {
  membership_.barriers = released.barriers;
  if (membership_.barrier != released.barrier) return;
  membership_.barrier.reset();
  parts_.reference.Released(rank_, released.barrier, parts_.job.workers);
  Compute();
}

// The averaged weights of a tensor, or an array of its optimizer's state.
bool WorkerProcess::Pulls(uint64_t step) {
  if (!parts_.pulls || pulled_at_ == step || random_() % 3 != 0) return false;
  pulled_at_ = step;
  const auto tensor = static_cast<uint32_t>(random_() % weights_.size());
  pulled_ = {.rank = rank_, .step = step, .tensor = tensor};
  if (random_() % 2 == 0) pulled_.array = static_cast<uint32_t>(random_() % 3);
  Do([&](Exchange& exchange) {
    return pulled_.array ? exchange.PullState(tensor, *pulled_.array)
                         : exchange.PullAverage(tensor);
  });
  return true;
}

void WorkerProcess::OnAveraged(ExchangeAveraged averaged) {
  pulled_.status = averaged.status;
  pulled_.values = std::move(averaged.weights);
  parts_.reference.Pulled(std::move(pulled_));
  After(absl::ZeroDuration(), [this] {
    if (!failed_) Compute();
  });
}

}  // namespace syncline::sim
