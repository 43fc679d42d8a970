#include "comm/collective/group/tcp_lane.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"

namespace syncline::collective {
namespace {

// Size of the buffers that are filled before they are sent: several pieces of the engine.
constexpr size_t kChunkBytes = size_t{256} << 10;
// The peer is told about consumed bytes after this many.
constexpr size_t kTellBytes = kLaneWindow / 8;

}  // namespace

void TcpLane::PutAside() {
  if (filled_ > sent_) unsent_.push_back(Slice::Of(chunk_, sent_, filled_ - sent_));
  sent_ = filled_;
}

MutableByteView TcpLane::Room() {
  const size_t allowed = kLaneWindow - static_cast<size_t>(written_ - consumed_);
  if (allowed == 0) return {};
  if (filled_ == chunk_.size()) {
    PutAside();
    chunk_ = pool_.Allocate(kChunkBytes);
    filled_ = sent_ = 0;
  }
  return chunk_.mutable_view().subspan(filled_,
                                       std::min(allowed, chunk_.size() - filled_));
}

void TcpLane::Commit(size_t bytes) {
  filled_ += bytes;
  written_ += bytes;
  *touched_ = true;
}

ByteView TcpLane::Arrived() {
  if (arrived_.empty()) return {};
  return arrived_.front().view().subspan(read_here_);
}

void TcpLane::Consume(size_t bytes) {
  if (bytes == 0) return;
  read_here_ += bytes;
  read_ += bytes;
  SYNCLINE_CHECK(!arrived_.empty() && read_here_ <= arrived_.front().size());
  if (read_here_ == arrived_.front().size()) {
    arrived_.pop_front();
    read_here_ = 0;
  }
  if (read_ - told_ >= kTellBytes) *touched_ = true;
}

Payload TcpLane::TakeUnsent() {
  PutAside();
  return std::exchange(unsent_, {});
}

std::optional<uint64_t> TcpLane::TakeConsumed() {
  if (read_ - told_ < kTellBytes) return std::nullopt;
  told_ = read_;
  return told_;
}

absl::Status TcpLane::OnConsumed(uint64_t bytes) {
  if (bytes < consumed_ || bytes > written_) {
    return absl::InvalidArgumentError(absl::StrCat("it claims to have consumed ", bytes,
                                                   " bytes, but only ", written_,
                                                   " were sent"));
  }
  consumed_ = bytes;
  return absl::OkStatus();
}

absl::Status TcpLane::CheckArrival(size_t bytes) const {
  const size_t allowed = kLaneWindow - static_cast<size_t>(received_ - read_);
  if (bytes > 0 && bytes <= allowed && bytes % kLaneAlignment == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("it sent ", bytes, " bytes, but only ", allowed, " are allowed"));
}

void TcpLane::Land(Buffer bytes) {
  received_ += bytes.size();
  arrived_.push_back(std::move(bytes));
}

}  // namespace syncline::collective
