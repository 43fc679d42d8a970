// Records of shards on their way from a server to its backup (ADR 29): numbered without a
// gap, in pieces that the data plane takes, and acknowledged when they have arrived.
//
// Thread safety: none.
#pragma once

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
// Ranks of servers that send records: those of workers are below.
inline constexpr uint32_t kBackupRanks = uint32_t{1} << 31;

// Of kinds kBackupHello, kRecord and kRecordAck.
bool IsOfBackup(const MessageHeader& header);
// What all of them say of who sends records: `rank` is kBackupRanks plus the server.
MessageHeader NameOfRecords(uint32_t job, ServerIdentity sender, uint64_t session_key);

class RecordSender {
 public:
  // Sends it, or keeps it until Connect.
  void Take(const ShardRecord& record);
  // `name`: of all that is sent. What was taken before goes out.
  void Connect(std::unique_ptr<Endpoint> endpoint, const MessageHeader& name,
               const std::string& own_address);
  const MessageHeader& name() const { return name_; }
  // How many records are with the backup. Nothing when it cannot know of so many.
  std::optional<uint64_t> Acknowledged(uint64_t records);

  struct Progress {
    uint64_t taken = 0;    // the highest version of any block that was recorded
    uint64_t durable = 0;  // all records of steps below it are with the backup
    uint64_t bytes = 0;    // that have left for it
  };
  Progress progress() const;

 private:
  void Send(uint64_t number, const Slice& bytes);

  std::unique_ptr<Endpoint> endpoint_;
  MessageHeader name_;
  uint64_t taken_ = 0;  // records
  uint64_t highest_ = 0;
  std::deque<std::pair<uint64_t, Slice>> unsent_;
  std::deque<std::pair<uint64_t, uint64_t>> unacknowledged_;  // number, step
  uint64_t acknowledged_ = 0;
};

class RecordReceiver {
 public:
  // A record, once it is whole. DataLoss where a number is left out, or bytes differ.
  absl::StatusOr<std::optional<std::vector<std::byte>>> Take(const MessageHeader& header,
                                                             ByteView piece);
  uint64_t records() const { return records_; }  // that are whole

 private:
  uint64_t records_ = 0;
  uint32_t pieces_ = 0;  // of the next one
  std::vector<std::byte> bytes_;
};

}  // namespace syncline
