// Says which tensors in GPU memory are encoded and decoded by the GPU, and which by the
// host, because there is no kernel for their codec. The encoder, the decoder and the text
// for users all use these functions.
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "comm/base/dtype.h"
#include "comm/codec/codec.h"
#include "comm/codec/cuda/codecs.h"
#include "comm/compression/transfer.h"
#include "worker/client/tensor_memory.h"

namespace syncline {

// Returns the parameters of the kernel that encodes such pushes. Empty: the host encodes
// them.
std::optional<SynclineCudaCodec> PushEncoderOnDevice(const Transfer& push);

// Whether the GPU makes the dense encoding of a gradient. It does if this is the elements
// themselves, or FP32 rounded to BF16.
bool IsDenseFromDevice(const Codec& codec, DType gradient);

// Whether the GPU decodes whole values. It does if they are the elements themselves, or
// BF16 values for FP32 weights.
bool IsDenseToDevice(const Codec& codec, DType weights);

// A tensor of a session that has started.
struct PlacedTensor {
  TensorMemory memory = {};
  TensorTransfers transfers = {};
  bool frozen = false;
};

// The job's codec settings as text, for example "topk:ratio=0.01,values=int8".
struct CodecSettings {
  std::string push = {};
  std::string publish = {};
};

// Returns where the codecs of tensors in GPU memory run, if gradients have the element
// type of the weights: "on the GPU (9 tensors; 2 more by way of the host: no kernel for
// push int4)". Empty if no tensor is in GPU memory.
std::string DescribeDeviceWays(std::span<const PlacedTensor> tensors,
                               const CodecSettings& settings);

}  // namespace syncline
