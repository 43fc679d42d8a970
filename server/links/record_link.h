// Carries the records of shards from a server to its backup (ADR 29). Records are
// numbered without a gap, sent in pieces that the data plane takes, and acknowledged when
// they have arrived.
//
// Thread safety: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/base/buffer.h"
#include "comm/transport/message.h"
#include "comm/transport/tcp/member_key.h"
#include "comm/transport/transport.h"
#include "server/shard/record.h"

namespace syncline {

inline constexpr size_t kRecordPieceBytes = size_t{1} << 20;
// Servers that send records have ranks from here on; ranks of workers are below.
inline constexpr uint32_t kBackupRanks = uint32_t{1} << 31;

// Returns whether the message is of kind kBackupHello, kRecord or kRecordAck.
bool IsOfBackup(const MessageHeader& header);
// Returns the header fields that identify the sender of records in all these messages.
// `rank` is kBackupRanks plus the server's number.
MessageHeader NameOfRecords(uint32_t job, ServerIdentity sender, uint64_t session_key);

// Sends the records of a shard to its backup.
class RecordSender {
 public:
  // Sends the record, or keeps it until Connect.
  void Take(const ShardRecord& record);
  // Sends a hello and the records that were taken before. All messages carry the fields
  // of `name`.
  void Connect(std::unique_ptr<Endpoint> endpoint, const MessageHeader& name,
               const std::string& own_address);
  const MessageHeader& name() const { return name_; }
  // Notes that the backup has the first `records` records, and returns that number.
  // Returns nothing if the backup cannot have that many.
  std::optional<uint64_t> Acknowledged(uint64_t records);

  struct Progress {
    uint64_t taken = 0;    // highest version of any recorded block
    uint64_t durable = 0;  // the backup has all records of steps below it
    uint64_t bytes = 0;    // sent to the backup
  };
  Progress progress() const;

 private:
  void Send(uint64_t number, const Slice& bytes);

  std::unique_ptr<Endpoint> endpoint_;
  MessageHeader name_;
  uint64_t taken_ = 0;  // number of records
  uint64_t highest_ = 0;
  std::deque<std::pair<uint64_t, Slice>> unsent_;
  std::deque<std::pair<uint64_t, uint64_t>> unacknowledged_;  // number, step
  uint64_t acknowledged_ = 0;
};

// The senders of a shard: to its backup, and to one that is to replace it. Each has one of
// two slots, which is free again when it ends.
class RecordSenders {
 public:
  static constexpr size_t kSlots = 2;

  // Null: the slot is free.
  RecordSender* at(size_t slot) const { return senders_[slot].get(); }
  bool empty() const { return senders_[0] == nullptr && senders_[1] == nullptr; }
  // The slot whose messages have that key.
  std::optional<size_t> Find(uint64_t session_key) const;
  // Takes the first free slot. Nothing: none is free.
  std::optional<size_t> Begin();
  void End(size_t slot) { senders_[slot].reset(); }
  void Clear() { senders_ = {}; }
  // Of the one that is furthest, with the bytes of both. Nothing: there is none.
  std::optional<RecordSender::Progress> progress() const;

 private:
  std::array<std::unique_ptr<RecordSender>, kSlots> senders_ = {};
};

// Puts records together that RecordSender sent.
class RecordReceiver {
 public:
  // Returns a record once all of its pieces have come. Fails with DataLoss if a piece is
  // missing or damaged.
  absl::StatusOr<std::optional<std::vector<std::byte>>> Take(const MessageHeader& header,
                                                             ByteView piece);
  uint64_t records() const { return records_; }  // number of complete records

 private:
  uint64_t records_ = 0;
  uint32_t pieces_ = 0;  // of the next record
  std::vector<std::byte> bytes_;
};

}  // namespace syncline
