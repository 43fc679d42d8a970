#include "comm/codec/view_digest.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "comm/base/check.h"
#include "comm/base/tiling.h"
#include "comm/codec/frame.h"

namespace syncline {

// FNV-1a (comm/base/job_seed.h) over words, in lanes that a core computes in parallel.
// The shift moves high bits down, since a product carries bits only upwards. Both
// operations are one-to-one for a given word.
uint64_t ViewDigest(const Payload& payload, uint32_t elements) {
  constexpr size_t kLanes = 4;
  const Buffer gathered = payload.size() == 1 ? Buffer() : Gather(payload);
  const ByteView bytes = payload.size() == 1
                             ? ByteView(payload.front().data, payload.front().size)
                             : gathered.view();
  const size_t headers = sizeof(TileHeader) * TilesOf(elements);
  SYNCLINE_CHECK(bytes.size() >= headers && bytes.size() % kTileAlignment == 0);
  static_assert(kTileAlignment % (kLanes * sizeof(uint64_t)) == 0);
  const auto mixed = [](uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 32);
  };
  uint64_t lanes[kLanes] = {1, 2, 3, 4};
  for (size_t at = headers; at < bytes.size(); at += sizeof(lanes)) {
    uint64_t words[kLanes];
    std::memcpy(words, bytes.data() + at, sizeof(words));
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = mixed(lanes[lane], words[lane]);
    }
  }
  uint64_t digest = elements;
  for (const uint64_t lane : lanes) digest = mixed(digest, lane);
  return digest;
}

}  // namespace syncline
