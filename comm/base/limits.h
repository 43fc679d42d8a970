// Every limit of Syncline in one place, each with the reason for its value.
#pragma once

#include <cstddef>
#include <cstdint>

namespace syncline {

// A tile stays in L2 as FP32 (256 KiB) and its indices fit u16.
inline constexpr uint32_t kTileElements = 65536;

// 4 MiB of FP32: long enough to hide per-message cost, short enough for urgent blocks to
// overtake.
inline constexpr uint32_t kTilesPerBlock = 16;
inline constexpr uint32_t kBlockElements = kTileElements * kTilesPerBlock;

// u32 element counts inside a tensor would wrap beyond this; no known layer comes near.
inline constexpr uint64_t kMaxTensorElements = uint64_t{1} << 36;
inline constexpr size_t kMaxTensorDimensions = 8;
inline constexpr size_t kMaxTensorNameBytes = 512;
inline constexpr size_t kMaxTensorsPerJob = 1 << 20;
inline constexpr size_t kMaxJobNameBytes = 128;

// 16 full tiles of the largest codec (FP32) with their headers, rounded up: nothing
// longer is ever received, whatever a length field claims.
inline constexpr size_t kMaxMessagePayloadBytes = (size_t{4} << 20) + (size_t{64} << 10);

// The data-plane message header (comm/transport/message.h). UCX carries it with the first
// packet.
inline constexpr size_t kMessageHeaderBytes = 64;

// Unacknowledged push bytes per shard: four FP32 blocks keep the wire and the engine busy
// together.
inline constexpr size_t kDefaultWindowBytes = size_t{16} << 20;

// Ranks index arrays on the servers, and each costs the coordinator a stream of about
// 50 KiB.
inline constexpr uint32_t kMaxWorkers = 16384;
inline constexpr uint32_t kMaxServers = 1024;
inline constexpr uint32_t kMaxEngineThreads = 64;

}  // namespace syncline
