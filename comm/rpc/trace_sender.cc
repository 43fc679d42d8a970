#include "comm/rpc/trace_sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/rpc/trace_clock.h"

namespace syncline {
namespace {

// About 100 KiB, which the coordinator's threads read in a millisecond.
constexpr size_t kSpansPerPart = 8192;
constexpr size_t kPartsAtOnce = 8;
// While the coordinator is away, further spans wait in the recorder or are dropped.
constexpr size_t kMaxUnacknowledged = size_t{8} << 20;

}  // namespace

std::optional<uint32_t> TraceSender::job() const {
  absl::MutexLock lock(&mutex_);
  if (!is_under_way_) return std::nullopt;
  return job_;
}

std::optional<v1::MemberMessage> TraceSender::Take(const v1::TraceOrder& order,
                                                   uint64_t first_step) {
  absl::MutexLock lock(&mutex_);
  if (order.trace() == trace_) {
    if (!is_under_way_ || order.until() == 0) return std::nullopt;
    until_ = order.until();
    recorder_.Limit(until_);
    return std::nullopt;
  }
  trace_ = order.trace();
  job_ = order.job();
  until_ = order.until();
  is_under_way_ = true;
  is_over_ = false;
  ends_at_ns_ = recorder_.Now() + int64_t{order.limit_ms()} * 1000000;
  recorder_.Open(job_);
  if (until_ > 0) recorder_.Limit(until_);
  v1::MemberMessage answer = NewPart();
  answer.mutable_trace_part()->set_first_step(first_step);
  return answer;
}

v1::MemberMessage TraceSender::NewPart() const {
  v1::MemberMessage message;
  message.mutable_trace_part()->set_trace(trace_);
  message.mutable_trace_part()->set_lost(recorder_.lost());
  return message;
}

std::vector<v1::MemberMessage> TraceSender::Parts(uint64_t reached,
                                                  const ControlLink* link) {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::MemberMessage> parts;
  if (!is_under_way_) return parts;
  // This is decided before the spans are taken. The last call then takes everything that
  // was recorded.
  const bool was_over = is_over_;
  is_over_ = (until_ > 0 && reached >= until_) || recorder_.Now() >= ends_at_ns_;
  const bool ends = reached == kNoStepComes || was_over;
  if (ends) recorder_.Close();
  bool is_empty = false;
  const bool is_clogged =
      link != nullptr && link->UnacknowledgedBytes() > kMaxUnacknowledged;
  while (!is_clogged && parts.size() < kPartsAtOnce && !is_empty) {
    const auto taken = recorder_.Take(kSpansPerPart);
    is_empty = !taken;
    if (is_empty) break;
    v1::TracePart& part = *parts.emplace_back(NewPart()).mutable_trace_part();
    part.set_track(taken->track);
    part.set_spans(static_cast<uint32_t>(taken->spans.size()));
    part.set_packed(PackSpans(taken->spans));
  }
  if (ends && is_empty) {
    if (parts.empty()) parts.push_back(NewPart());
    parts.back().mutable_trace_part()->set_last(true);
    is_under_way_ = false;
  }
  if (!parts.empty() && link != nullptr) {
    WriteClock(*link, recorder_, *parts.back().mutable_trace_part());
  }
  return parts;
}

std::string PackSpans(std::span<const TraceSpan> spans) {
  v1::TraceSpans packed;
  TraceSpan last;
  for (const TraceSpan& span : spans) {
    packed.add_begin_ns(span.begin_ns - last.begin_ns);
    packed.add_took_ns(
        static_cast<uint64_t>(std::max<int64_t>(0, span.end_ns - span.begin_ns)));
    packed.add_step(static_cast<int64_t>(span.step - last.step));
    packed.add_block(span.block + 1);
    packed.add_rank(span.rank == TraceSpan::kNoRank ? 0 : span.rank + 1u);
    packed.add_kind(static_cast<uint32_t>(span.kind));
    last = span;
  }
  return packed.SerializeAsString();
}

absl::StatusOr<std::vector<TraceSpan>> UnpackSpans(const std::string& packed) {
  v1::TraceSpans columns;
  if (!columns.ParseFromString(packed)) {
    return absl::InvalidArgumentError("spans that cannot be parsed");
  }
  const int count = columns.begin_ns_size();
  const bool is_whole = columns.took_ns_size() == count && columns.step_size() == count &&
                        columns.block_size() == count && columns.rank_size() == count &&
                        columns.kind_size() == count;
  if (!is_whole) return absl::InvalidArgumentError("columns of different lengths");
  std::vector<TraceSpan> spans;
  spans.reserve(static_cast<size_t>(count));
  uint64_t begin = 0, step = 0;
  for (int i = 0; i < count; ++i) {
    // Unsigned, so that it may wrap around: the result is no worse than any other wrong
    // value.
    begin += static_cast<uint64_t>(columns.begin_ns(i));
    step += static_cast<uint64_t>(columns.step(i));
    const uint64_t took = columns.took_ns(i);
    if (columns.kind(i) >= kTraceKindNames.size() ||
        columns.rank(i) > TraceSpan::kNoRank || begin > (uint64_t{1} << 62) ||
        took > (uint64_t{1} << 62)) {
      return absl::InvalidArgumentError(absl::StrCat("span ", i, " makes no sense"));
    }
    spans.push_back({.begin_ns = static_cast<int64_t>(begin),
                     .end_ns = static_cast<int64_t>(begin + took),
                     .step = step,
                     .block = columns.block(i) - 1,
                     .rank = static_cast<uint16_t>(columns.rank(i) - 1),
                     .kind = static_cast<TraceKind>(columns.kind(i))});
  }
  return spans;
}

}  // namespace syncline
