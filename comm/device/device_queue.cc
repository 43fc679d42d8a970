#include "comm/device/device_queue.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "comm/base/check.h"
#include "comm/base/tiling.h"

namespace syncline {
namespace {

// Maximum size of one copy between page-locked and other host memory.
constexpr size_t kCopyBytes = size_t{4} << 20;
constexpr size_t kTileAlignment = 64;

// Returns a capacity that rarely needs to grow, because freeing memory waits for the
// device.
size_t Roomy(size_t bytes) { return std::bit_ceil(bytes); }

size_t Padded(size_t bytes) {
  return (bytes + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
}

}  // namespace

DeviceQueue::DeviceQueue(Device& device, Thread thread)
    : device_(device),
      thread_(thread),
      host_(device, DeviceBuffer::Place::kHost),
      near_(device, DeviceBuffer::Place::kDevice),
      workspace_(device, DeviceBuffer::Place::kDevice) {}

DeviceQueue::~DeviceQueue() {
  if (stream_ == nullptr) return;
  Succeeded(device_.calls().stream_destroy(device_.ordinal(), stream_),
            "destroying a stream");
}

bool DeviceQueue::Open() {
  if (!device_.ok()) return false;
  if (stream_ != nullptr) return true;
  const bool is_used = thread_ == Thread::kOthers ||
                       Succeeded(device_.calls().use_device(device_.ordinal()),
                                 "making it a thread's device");
  return is_used && Succeeded(device_.calls().stream_create(device_.ordinal(), &stream_),
                              "creating a stream");
}

void* DeviceQueue::handle() { return device_.calls().stream_handle(stream_); }

bool DeviceQueue::Copy(void* to, const void* from, size_t bytes, const char* what) {
  return Succeeded(device_.calls().copy(device_.ordinal(), to, from, bytes, stream_),
                   what);
}

bool DeviceQueue::Wait(const char* what) {
  return Succeeded(device_.calls().stream_wait(device_.ordinal(), stream_), what);
}

void DeviceQueue::Read(const void* from, MutableByteView to) {
  constexpr char kWhat[] = "copying to the host";
  for (size_t first = 0; first < to.size(); first += kCopyBytes) {
    const MutableByteView part =
        to.subspan(first, std::min(kCopyBytes, to.size() - first));
    const auto* const source = static_cast<const std::byte*>(from) + first;
    if (Open() && host_.Reserve(Roomy(part.size())) &&
        Copy(host_.data(), source, part.size(), kWhat) && Wait(kWhat)) {
      std::memcpy(part.data(), host_.data(), part.size());
    } else {
      std::memset(part.data(), 0, part.size());
    }
  }
}

void DeviceQueue::Write(ByteView from, void* to) {
  constexpr char kWhat[] = "copying to the device";
  for (size_t first = 0; first < from.size(); first += kCopyBytes) {
    const ByteView part = from.subspan(first, std::min(kCopyBytes, from.size() - first));
    if (!Open() || !host_.Reserve(Roomy(part.size()))) return;
    std::memcpy(host_.data(), part.data(), part.size());
    auto* const target = static_cast<std::byte*>(to) + first;
    if (!Copy(target, host_.data(), part.size(), kWhat) || !Wait(kWhat)) return;
  }
}

void DeviceQueue::Clear(void* to, size_t bytes) {
  constexpr char kWhat[] = "clearing memory of the device";
  if (bytes == 0 || !Open()) return;
  if (Succeeded(device_.calls().clear(device_.ordinal(), to, bytes, stream_), kWhat)) {
    Wait(kWhat);
  }
}

// Layout in both memories: all tiles, then the length of each.
std::span<const ByteView> DeviceQueue::Encode(const SynclineCudaCodec& codec,
                                              SynclineCudaEncoding encoding) {
  const uint32_t count = TilesOf(encoding.elements);
  const DeviceCalls& calls = device_.calls();
  const size_t stride = calls.tile_stride(&codec);
  const size_t bytes = count * (stride + sizeof(uint32_t));
  tiles_.assign(count, {});
  if (!Open() || !host_.Reserve(Roomy(bytes)) || !near_.Reserve(Roomy(bytes)) ||
      !workspace_.Reserve(calls.workspace_bytes(&codec, encoding.elements))) {
    return tiles_;
  }
  encoding.device = device_.ordinal();
  encoding.out = near_.data();
  encoding.tile_bytes = reinterpret_cast<uint32_t*>(near_.data() + count * stride);
  encoding.workspace = workspace_.data();
  constexpr char kWhat[] = "encoding a gradient";
  if (!Succeeded(calls.encode(&codec, &encoding, handle()), kWhat) ||
      !Copy(host_.data(), near_.data(), bytes, kWhat) || !Wait(kWhat)) {
    return tiles_;
  }
  const std::byte* const lengths = host_.data() + count * stride;
  for (uint32_t tile = 0; tile < count; ++tile) {
    uint32_t length = 0;
    std::memcpy(&length, lengths + tile * sizeof(length), sizeof(length));
    length = std::min<size_t>(length, stride);  // no more bytes exist
    tiles_[tile] = {host_.data() + tile * stride, length};
  }
  return tiles_;
}

ByteView DeviceQueue::Fetch(const void* from, size_t bytes) {
  constexpr char kWhat[] = "copying a gradient";
  if (!Open() || !host_.Reserve(Roomy(bytes)) ||
      !Copy(host_.data(), from, bytes, kWhat) || !Wait(kWhat)) {
    return {};
  }
  return {host_.data(), bytes};
}

ByteView DeviceQueue::ToBf16(const float* from, size_t elements) {
  const size_t bytes = elements * sizeof(uint16_t);
  constexpr char kWhat[] = "rounding a gradient";
  if (!Open() || !host_.Reserve(Roomy(bytes)) || !near_.Reserve(Roomy(bytes)) ||
      !Succeeded(device_.calls().bf16_from_float(
                     device_.ordinal(), from, reinterpret_cast<uint16_t*>(near_.data()),
                     elements, handle()),
                 kWhat) ||
      !Copy(host_.data(), near_.data(), bytes, kWhat) || !Wait(kWhat)) {
    return {};
  }
  return {host_.data(), bytes};
}

// Layout in both memories: all tiles, their lengths, and a flag for each refused tile.
bool DeviceQueue::DecodeAdd(const SynclineCudaCodec& codec,
                            std::span<const ByteView> tiles, float* values,
                            uint64_t elements) {
  SYNCLINE_CHECK(tiles.size() == TilesOf(elements));
  size_t stride = kTileAlignment;
  for (const ByteView tile : tiles) stride = std::max(stride, Padded(tile.size()));
  const size_t lengths = tiles.size() * stride;
  const size_t refused = lengths + tiles.size() * sizeof(uint32_t);
  const size_t bytes = refused + tiles.size() * sizeof(uint32_t);
  if (!Open() || !host_.Reserve(Roomy(bytes)) || !near_.Reserve(Roomy(bytes)))
    return true;
  for (size_t i = 0; i < tiles.size(); ++i) {
    std::byte* const room = host_.data() + i * stride;
    std::ranges::copy(tiles[i], room);
    std::memset(room + tiles[i].size(), 0, Padded(tiles[i].size()) - tiles[i].size());
    const auto length = static_cast<uint32_t>(tiles[i].size());
    std::memcpy(host_.data() + lengths + i * sizeof(length), &length, sizeof(length));
  }
  constexpr char kWhat[] = "decoding new weights";
  const SynclineCudaDecoding decoding = {
      .device = device_.ordinal(),
      .bytes = near_.data(),
      .tile_bytes = reinterpret_cast<const uint32_t*>(near_.data() + lengths),
      .stride = stride,
      .accumulator = values,
      .elements = elements,
      .refused = reinterpret_cast<uint32_t*>(near_.data() + refused)};
  if (!Copy(near_.data(), host_.data(), refused, kWhat) ||
      !Succeeded(device_.calls().decode_add(&codec, &decoding, handle()), kWhat) ||
      !Copy(host_.data() + refused, near_.data() + refused, bytes - refused, kWhat) ||
      !Wait(kWhat)) {
    return true;
  }
  return std::all_of(host_.data() + refused, host_.data() + bytes,
                     [](std::byte value) { return value == std::byte{}; });
}

size_t DeviceQueue::Gather(std::span<const ByteView> parts) {
  size_t bytes = 0;
  for (const ByteView part : parts) bytes += part.size();
  if (!Open() || !host_.Reserve(Roomy(bytes))) return 0;
  size_t used = 0;
  for (const ByteView part : parts) {
    std::ranges::copy(part, host_.data() + used);
    used += part.size();
  }
  return bytes;
}

void DeviceQueue::Put(std::span<const ByteView> parts, void* to) {
  constexpr char kWhat[] = "copying new weights";
  const size_t bytes = Gather(parts);
  if (bytes > 0 && Copy(to, host_.data(), bytes, kWhat)) Wait(kWhat);
}

void DeviceQueue::FromBf16(std::span<const ByteView> parts, float* to) {
  constexpr char kWhat[] = "widening new weights";
  const size_t bytes = Gather(parts);
  if (bytes == 0 || !near_.Reserve(Roomy(bytes))) return;
  if (!Copy(near_.data(), host_.data(), bytes, kWhat)) return;
  const auto* const values = reinterpret_cast<const uint16_t*>(near_.data());
  if (Succeeded(device_.calls().float_from_bf16(device_.ordinal(), values, to,
                                                bytes / sizeof(uint16_t), handle()),
                kWhat)) {
    Wait(kWhat);
  }
}

}  // namespace syncline
