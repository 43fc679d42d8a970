#include "worker/client/device_ways.h"

#include <array>
#include <cstddef>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/device/device_codec.h"
#include "worker/client/memory_view.h"

namespace syncline {
namespace {

std::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    default:
      return "float32";
  }
}

// Returns the codec as the user's setting writes it. Returns the codec's name if the
// setting has rules for several codecs, or if the transfer does not compress.
std::string NameOf(const Transfer& transfer, const std::string& setting) {
  const bool is_setting = transfer.compresses() && !absl::StrContains(setting, '@');
  return is_setting ? setting : std::string(transfer.codec->name());
}

// Returns the codec for which there is no kernel, such as "int4". Empty: the GPU encodes
// the tensor's pushes.
std::string NoKernelForPush(const PlacedTensor& tensor, const std::string& setting) {
  const Transfer& push = tensor.transfers.push;
  if (push.chooses()) return "auto, but for its int8 and onebit";
  if (push.compresses() && PushEncoderOnDevice(push)) return "";
  if (!push.compresses() && IsDenseFromDevice(*push.codec, tensor.memory.dtype)) {
    return "";
  }
  return NameOf(push, setting);
}

// Whether kernels add the codec's encodings. A sparse codec has variants, so an encoding
// is made and checked.
bool IsReadThere(const Codec& codec) {
  if (!DecoderOnDevice(codec)) return false;
  const std::array<float, 64> values = {1};
  std::vector<std::byte> bytes(codec.MaxEncodedBytes(values.size()));
  const size_t size = codec.Encode(values, {}, {}, bytes);
  std::vector<std::byte> memory;
  return ReadableOnDevice(codec, std::span(bytes).first(size), values.size(), memory)
      .has_value();
}

std::string NoKernelForPublish(const PlacedTensor& tensor, const std::string& setting) {
  const Transfer& publish = tensor.transfers.publish;
  const DType dtype = tensor.memory.dtype;
  const std::string name = NameOf(publish, setting);
  if (!publish.compresses()) return IsDenseToDevice(*publish.codec, dtype) ? "" : name;
  // For such weights the session keeps an FP32 copy on the host, which it rounds to the
  // weights.
  if (dtype != DType::kF32) {
    return absl::StrCat(name, " into ", std::string(NameOf(dtype)), " weights");
  }
  return IsReadThere(*publish.codec) ? "" : name;
}

std::string Tensors(size_t count) {
  return absl::StrCat(count, count == 1 ? " tensor" : " tensors");
}

}  // namespace

std::optional<SynclineCudaCodec> PushEncoderOnDevice(const Transfer& push) {
  if (push.memory.kind == MemoryKind::kMomentumCorrection) return std::nullopt;
  return EncoderOnDevice(*push.codec);
}

bool IsDenseFromDevice(const Codec& codec, DType gradient) {
  const bool is_rounded = gradient == DType::kF32 && codec.id() == CodecId::kBf16;
  return is_rounded || IsEncodingOf(codec, gradient);
}

bool IsDenseToDevice(const Codec& codec, DType weights) {
  const bool is_widened = weights == DType::kF32 && codec.id() == CodecId::kBf16;
  return is_widened || IsEncodingOf(codec, weights);
}

std::string DescribeDeviceWays(std::span<const PlacedTensor> tensors,
                               const CodecSettings& settings) {
  size_t there = 0;
  size_t by_host = 0;
  std::set<std::string> missing;
  for (const PlacedTensor& tensor : tensors) {
    if (tensor.memory.device == nullptr) continue;
    std::string push;
    std::string publish;
    if (!tensor.frozen) {
      push = NoKernelForPush(tensor, settings.push);
      publish = NoKernelForPublish(tensor, settings.publish);
    }
    ++(push.empty() && publish.empty() ? there : by_host);
    if (!push.empty()) missing.insert("push " + push);
    if (!publish.empty()) missing.insert("publish " + publish);
  }
  if (there + by_host == 0) return "";
  if (by_host == 0) return absl::StrCat("on the GPU (", Tensors(there), ")");
  const std::string why =
      absl::StrCat(" by way of the host: no kernel for ", absl::StrJoin(missing, ", "));
  if (there == 0) {
    return absl::StrCat("on the CPU (", Tensors(by_host), " of a GPU", why, ")");
  }
  return absl::StrCat("on the GPU (", Tensors(there), "; ", by_host, " more", why, ")");
}

}  // namespace syncline
