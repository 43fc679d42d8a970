// By which way gradients and weights travel whose tensors lie in memory of GPUs: encoded
// and decoded there, or by way of the host, where no kernel does it. What encodes and
// decodes goes by these functions, and so does what users are told.
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

// What the kernels are told to encode pushes that are compressed so. Nothing: the host
// encodes them.
std::optional<SynclineCudaCodec> PushEncoderOnDevice(const Transfer& push);

// Whether the GPU makes the dense encoding of a gradient: its elements as they are, or FP32
// rounded to BF16.
bool IsDenseFromDevice(const Codec& codec, DType gradient);

// Whether the GPU takes whole values: as they are, or BF16 into FP32 weights.
bool IsDenseToDevice(const Codec& codec, DType weights);

// A tensor of a session that has begun; one that is frozen is never pushed.
struct PlacedTensor {
  TensorMemory memory = {};
  TensorTransfers transfers = {};
  bool frozen = false;
};

// As the job has them, for what is said: "topk:ratio=0.01,values=int8".
struct CodecSettings {
  std::string push = {};
  std::string publish = {};
};

// Where the codecs run of tensors that lie in memory of GPUs, if their gradients have the
// element type of their weights: "on the GPU (9 tensors; 2 more by way of the host: no
// kernel for push int4)". Empty where none lies there.
std::string DescribeDeviceWays(std::span<const PlacedTensor> tensors,
                               const CodecSettings& settings);

}  // namespace syncline
