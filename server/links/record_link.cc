#include "server/links/record_link.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/crc32c.h"
#include "server/journal/record_bytes.h"

namespace syncline {

bool IsOfBackup(const MessageHeader& header) {
  const auto kind = static_cast<MessageKind>(header.kind);
  return kind == MessageKind::kBackupHello || kind == MessageKind::kRecord ||
         kind == MessageKind::kRecordAck;
}

MessageHeader NameOfRecords(uint32_t job, ServerIdentity sender, uint64_t session_key) {
  MessageHeader name;
  name.job = job;
  name.rank = kBackupRanks + sender.server;
  name.incarnation = sender.incarnation;
  name.session_key = session_key;
  return name;
}

void RecordSender::Take(const ShardRecord& record) {
  const RecordBytes written = WriteRecord(record);
  const Buffer bytes = Gather({Slice::Borrowed(ByteView(written.head)), written.payload});
  const auto* step = std::get_if<StepRecord>(&record.what);
  unacknowledged_.emplace_back(++taken_, step != nullptr ? step->step : highest_);
  if (step != nullptr) highest_ = std::max(highest_, step->step + 1);
  // A block's state includes all steps before it.
  if (const auto* state = std::get_if<BlockStateRecord>(&record.what)) {
    highest_ = std::max(highest_, state->saved->version);
  }
  if (endpoint_ == nullptr) {
    unsent_.emplace_back(taken_, Slice::Of(bytes));
  } else {
    Send(taken_, Slice::Of(bytes));
  }
}

void RecordSender::Connect(std::unique_ptr<Endpoint> endpoint, const MessageHeader& name,
                           const std::string& own_address) {
  endpoint_ = std::move(endpoint);
  name_ = name;
  MessageHeader hello = name;
  hello.kind = static_cast<uint16_t>(MessageKind::kBackupHello);
  const Buffer address = Buffer::CopyOf(
      std::as_bytes(std::span<const char>(own_address.data(), own_address.size())));
  endpoint_->SendAs(TrafficOf(hello, address.size()), SealHeader(hello),
                    {Slice::Of(address)}, [](const absl::Status&) {});
  for (const auto& [number, bytes] : unsent_) Send(number, bytes);
  unsent_.clear();
}

void RecordSender::Send(uint64_t number, const Slice& bytes) {
  const size_t pieces = (bytes.size + kRecordPieceBytes - 1) / kRecordPieceBytes;
  for (size_t i = 0; i < pieces; ++i) {
    const size_t offset = i * kRecordPieceBytes;
    const Slice piece = {bytes.data + offset,
                         std::min(kRecordPieceBytes, bytes.size - offset), bytes.owner};
    MessageHeader header = name_;
    header.kind = static_cast<uint16_t>(MessageKind::kRecord);
    header.step = number;
    header.block = static_cast<uint32_t>(i);
    header.samples = static_cast<uint32_t>(pieces);
    header.epoch = Crc32c({piece.data, piece.size});
    endpoint_->SendAs(TrafficOf(header, piece.size), SealHeader(header), {piece},
                      [](const absl::Status&) {});
  }
}

std::optional<uint64_t> RecordSender::Acknowledged(uint64_t records) {
  if (records > taken_ || records < acknowledged_) return std::nullopt;
  while (!unacknowledged_.empty() && unacknowledged_.front().first <= records) {
    unacknowledged_.pop_front();
  }
  return acknowledged_ = records;
}

RecordSender::Progress RecordSender::progress() const {
  Progress progress = {.taken = highest_, .durable = highest_};
  if (endpoint_ != nullptr) progress.bytes = endpoint_->send_state().gone_bytes;
  for (const auto& [number, step] : unacknowledged_) {
    progress.durable = std::min(progress.durable, step);
  }
  return progress;
}

std::optional<size_t> RecordSenders::Find(uint64_t session_key) const {
  for (size_t slot = 0; slot < kSlots; ++slot) {
    const RecordSender* const one = at(slot);
    if (one != nullptr && one->name().session_key == session_key) return slot;
  }
  return std::nullopt;
}

std::optional<size_t> RecordSenders::Begin() {
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (senders_[slot] != nullptr) continue;
    senders_[slot] = std::make_unique<RecordSender>();
    return slot;
  }
  return std::nullopt;
}

std::optional<RecordSender::Progress> RecordSenders::progress() const {
  std::optional<RecordSender::Progress> furthest;
  uint64_t bytes = 0;
  for (const auto& sender : senders_) {
    if (sender == nullptr) continue;
    const RecordSender::Progress one = sender->progress();
    bytes += one.bytes;
    if (!furthest || one.durable > furthest->durable) furthest = one;
  }
  if (furthest) furthest->bytes = bytes;
  return furthest;
}

absl::StatusOr<std::optional<std::vector<std::byte>>> RecordReceiver::Take(
    const MessageHeader& header, ByteView piece) {
  if (header.step != records_ + 1 || header.block != pieces_ ||
      header.block >= header.samples) {
    return absl::DataLossError(absl::StrCat("piece ", header.block, " of record ",
                                            header.step, " came where piece ", pieces_,
                                            " of record ", records_ + 1, " was due"));
  }
  if (header.epoch != Crc32c(piece)) {
    return absl::DataLossError(absl::StrCat("record ", header.step, " came damaged"));
  }
  bytes_.insert(bytes_.end(), piece.begin(), piece.end());
  if (++pieces_ < header.samples) return std::nullopt;
  ++records_;
  pieces_ = 0;
  return std::exchange(bytes_, {});
}

}  // namespace syncline
