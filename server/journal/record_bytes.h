// Records of shards (server/shard/record.h) as bytes of a journal: a head, which says how
// long the payload behind it is.
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
  Slice payload = {};  // the record's own
};

RecordBytes WriteRecord(const ShardRecord& record);
// DataLoss when the bytes are no record. The payload is a copy.
absl::StatusOr<ShardRecord> ReadRecord(ByteView bytes);

}  // namespace syncline
