#include "comm/collective/nccl/roll_call.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "comm/base/buffer.h"
#include "comm/base/crc32c.h"

namespace syncline::collective {
namespace {

constexpr uint64_t kNoted = 1024;  // 72 KiB

uint64_t DigestOf(const CallHeader& header, uint64_t before) {
  const ByteView bytes = {reinterpret_cast<const std::byte*>(&header), sizeof header};
  return Crc32c(bytes, static_cast<uint32_t>(before)) | uint64_t{1} << 32;  // never zero
}

}  // namespace

uint64_t RollCall::Note(CallHeader& header) {
  const uint64_t before = called_ == 0 ? 0 : Find(called_)->digest;
  header.sequence = ++called_;
  if (noted_.empty()) noted_.resize(kNoted);
  noted_[called_ % kNoted] = {header, DigestOf(header, before)};
  return called_;
}

const RollCall::Noted* RollCall::Find(uint64_t sequence) const {
  const bool is_noted =
      sequence > 0 && sequence <= called_ && called_ - sequence < kNoted;
  return is_noted ? &noted_[sequence % kNoted] : nullptr;
}

RollCallRecord RollCall::Answer() const {
  RollCallRecord record = {.ended = ended_, .called = called_};
  if (asked_ == 0) return record;
  if (const Noted* const noted = Find(asked_)) record.header = noted->header;
  if (const Noted* const noted = Find(asked_ - 1)) record.digest = noted->digest;
  return record;
}

absl::Status RollCall::Take(std::span<const RollCallRecord> records) {
  const RollCallRecord& own = records[static_cast<size_t>(rank_)];
  heard_.clear();
  uint64_t next = own.ended + 1;
  absl::Status found;
  for (const RollCallRecord& record : records) {
    const auto rank = static_cast<int>(heard_.size());
    heard_.push_back(record.called);
    next = std::min(next, record.ended + 1);
    if (!found.ok()) continue;
    const bool both_called = record.header.sequence != 0 && own.header.sequence != 0;
    if (record.digest != 0 && own.digest != 0 && record.digest != own.digest) {
      found = absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " has called different operations over NCCL from rank ", rank_,
          ", and they differ before number ", asked_,
          "; all ranks must make the same calls in the same order"));
      SetFailedRank(found, rank);
    } else if (both_called && !(record.header == own.header)) {
      found = Mismatch(rank, record.header, own.header);
    }
  }
  asked_ = next;
  return found;
}

std::vector<int> RollCall::Behind(uint64_t sequence) const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < heard_.size(); ++rank) {
    if (heard_[rank] < sequence) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace syncline::collective
