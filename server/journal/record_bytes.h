// Encodes records of shards (server/shard/record.h) as bytes of a journal: a head with
// all fields, then the payload.
//
// A payload extends to the end of the bytes.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/base/buffer.h"
#include "server/shard/record.h"

namespace syncline {

struct RecordBytes {
  std::vector<std::byte> head = {};
  Slice payload = {};  // the record's own memory
};

RecordBytes WriteRecord(const ShardRecord& record);
// Fails with DataLoss if the bytes are not a record. The payload is a copy.
absl::StatusOr<ShardRecord> ReadRecord(ByteView bytes);

}  // namespace syncline
