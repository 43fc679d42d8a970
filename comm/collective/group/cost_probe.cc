#include "comm/collective/group/cost_probe.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "comm/collective/element/element.h"

namespace syncline::collective {
namespace {

constexpr absl::Duration kBudget = absl::Milliseconds(2);  // of each of the three costs
constexpr int kMinRepeats = 3;
constexpr int kMaxRepeats = 20;
constexpr uint64_t kMessages = 16;
constexpr size_t kSmallBytes = 8;
// Large enough to fill a socket's buffers on a fast network.
constexpr size_t kMinBytes = size_t{64} << 10;
constexpr size_t kMaxBytes = size_t{1} << 20;

// What the answering rank is about to receive; zero bytes: nothing more.
struct ProbeOrder {
  uint64_t messages = 0;
  uint64_t bytes = 0;
};

template <typename T>
MutableByteView BytesOf(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

class Prober {
 public:
  explicit Prober(ProbePeer& peer) : peer_(peer), message_(kMaxBytes) {}

  // Returns the least time of sending the messages and hearing that they have arrived.
  // Repeats it while the budget lasts, at least kMinRepeats times.
  absl::StatusOr<absl::Duration> Time(const ProbeOrder& order) {
    absl::Duration least = absl::InfiniteDuration();
    const absl::Duration end = peer_.Now() + kBudget;
    for (int k = 0; k < kMaxRepeats && (k < kMinRepeats || peer_.Now() < end); ++k) {
      const absl::Duration begin = peer_.Now();
      SYNCLINE_RETURN_IF_ERROR(Exchange(order));
      least = std::min(least, peer_.Now() - begin);
    }
    return least;
  }

  absl::Status Stop() {
    ProbeOrder stop;
    return peer_.Send(BytesOf(stop));
  }

 private:
  absl::Status Exchange(ProbeOrder order) {
    SYNCLINE_RETURN_IF_ERROR(peer_.Send(BytesOf(order)));
    for (uint64_t k = 0; k < order.messages; ++k) {
      SYNCLINE_RETURN_IF_ERROR(peer_.Send(ByteView(message_).first(order.bytes)));
    }
    uint64_t answer = 0;
    return peer_.Receive(BytesOf(answer));
  }

  ProbePeer& peer_;
  const std::vector<std::byte> message_;
};

}  // namespace

absl::StatusOr<LinkCost> MeasureLink(ProbePeer& peer) {
  Prober prober(peer);
  const ProbeOrder nothing = {.messages = 0, .bytes = kSmallBytes};
  SYNCLINE_ASSIGN_OR_RETURN(const absl::Duration both_ways, prober.Time(nothing));
  SYNCLINE_ASSIGN_OR_RETURN(const absl::Duration many,
                            prober.Time({kMessages, kSmallBytes}));
  // The size that takes about half of the budget; the first one also opens TCP's window.
  uint64_t bytes = kMinBytes;
  SYNCLINE_ASSIGN_OR_RETURN(absl::Duration large, prober.Time({1, bytes}));
  const double room =
      absl::FDivDuration(kBudget / 2, std::max(large - both_ways, absl::Nanoseconds(1)));
  if (room >= 2) {
    constexpr uint64_t kMaxTimes = kMaxBytes / kMinBytes;
    const uint64_t times =
        room >= static_cast<double>(kMaxTimes) ? kMaxTimes : static_cast<uint64_t>(room);
    bytes = kMinBytes * times;
    SYNCLINE_ASSIGN_OR_RETURN(large, prober.Time({1, bytes}));
  }
  SYNCLINE_RETURN_IF_ERROR(prober.Stop());
  const double one_way = absl::ToDoubleSeconds(both_ways) / 2;
  LinkCost cost;
  cost.per_message =
      std::max(absl::ToDoubleSeconds(many - both_ways), 0.0) / double{kMessages};
  // A message's own time is part of what an answer takes.
  cost.latency = std::max(one_way - cost.per_message, one_way / 2);
  // A faster link than the model's smallest number would make bytes free.
  cost.per_byte = std::max(
      absl::ToDoubleSeconds(large - both_ways) / static_cast<double>(bytes), 1e-12);
  return cost;
}

absl::Status AnswerProbes(ProbePeer& peer) {
  std::vector<std::byte> message(kMaxBytes);
  while (true) {
    ProbeOrder order;
    SYNCLINE_RETURN_IF_ERROR(peer.Receive(BytesOf(order)));
    if (order.bytes == 0) return absl::OkStatus();
    if (order.bytes > kMaxBytes || order.messages > kMessages) {
      return absl::InternalError(absl::StrCat("a probe of ", order.messages,
                                              " messages of ", order.bytes, " bytes"));
    }
    for (uint64_t k = 0; k < order.messages; ++k) {
      SYNCLINE_RETURN_IF_ERROR(peer.Receive(MutableByteView(message).first(order.bytes)));
    }
    uint64_t answer = 1;
    SYNCLINE_RETURN_IF_ERROR(peer.Send(BytesOf(answer)));
  }
}

double MeasureReduction(absl::FunctionRef<absl::Duration()> now) {
  constexpr size_t kValues = kMinBytes / sizeof(float);
  std::vector<float> sum(kValues, 1);
  const std::vector<float> other(kValues, 1);
  const auto* const added = reinterpret_cast<const std::byte*>(other.data());
  auto* const out = reinterpret_cast<std::byte*>(sum.data());
  absl::Duration least = absl::InfiniteDuration();
  for (int k = 0; k < kMaxRepeats; ++k) {
    const absl::Duration begin = now();
    Combine({}, kValues, out, std::span(&added, 1), out);
    least = std::min(least, now() - begin);
  }
  return std::max(absl::ToDoubleSeconds(least) / double{kMinBytes}, 1e-12);
}

}  // namespace syncline::collective
