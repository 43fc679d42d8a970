// The codecs of comm/codec on a CUDA device. They produce the same encodings, byte for
// byte, and the same residuals, bit for bit, as Codec::Encode and GradientMemory (error
// feedback) on a CPU.
//
// Encode reads a gradient and the residual once, tile by tile of 65,536 elements:
//
//   x = gradient + decay * residual;  out = C(x);  residual = x - C(x)
//
// A tile whose x holds NaN or infinity is not encoded and its residual stays unchanged;
// the caller must send its gradient densely, as GradientMemory does. DecodeAdd adds
// weight times the decoded tiles to an FP32 accumulator.
//
//   const SynclineCudaCodec codec = {.id = 5, .block_log2 = 12};
//   const size_t stride = SynclineCudaTileStride(&codec);          // of a tile in `out`
//   const size_t workspace = SynclineCudaWorkspaceBytes(&codec, n);
//   SynclineCudaEncode(&codec, &encoding, stream);
//
// All pointers in the structs refer to memory of the stream's device. All but `workspace`
// may also refer to page-locked memory of the host (memory.h), which is slower. They must
// be aligned to 16 bytes, `out` and `bytes` to 64. None may be null unless its comment
// allows it or there are no elements. Arrays must not overlap. Thread-safe, as long as
// each call has its own arrays.
//
// The functions only enqueue work on the caller's stream: they allocate nothing and do
// not synchronise. They may be captured into a CUDA graph. Each replay then uses the same
// values of the structs; set `now_on_device`, which the kernels read when they run, for
// values that change.
//
// They return the cudaError_t of the work they enqueued: 0 is success,
// cudaErrorInvalidValue a violated requirement. They neither report nor clear earlier
// errors of other code. Errors of the kernels appear at the stream's next
// synchronisation, as usual. After any error except cudaErrorInvalidValue, some tiles may
// have been encoded: `residual`, `tile_units` and `out` are then undefined, and a second
// call would count a gradient twice. Zero the residual, or restore a copy of it, before
// continuing.
//
// The interface has C linkage and uses void* for the stream, because the product finds
// the functions by name in a module that is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct SynclineCudaCodec {
  // Size of the caller's struct. If it differs from the module's, the call fails.
  uint32_t struct_bytes = sizeof(SynclineCudaCodec);
  // CodecId (comm/codec/codec.h): 5 sign, 6 int8, 16 sparse top-k; decoding also 2 bf16.
  uint32_t id = 0;
  // sign, int8: log2 of the elements that share a scale, 8 to 16. Decoders take any.
  uint32_t block_log2 = 12;
  // int8: 0 rounds to nearest, 1 at random.
  uint32_t stochastic = 0;
  // sparse: CodecId of the values, 1 fp32 or 2 bf16. A value that would round to infinity
  // in BF16 is sent as the largest finite BF16, and the rest stays in the residual.
  uint32_t values = 1;
  // sparse: share of a tile's elements that is sent, in (0, 1].
  double ratio = 0.01;
};

// The units in which gradients are measured (GradientUnits of comm/compression/memory).
struct SynclineCudaUnits {
  float loss_scale = 1;     // the gradients are multiplied by it
  float learning_rate = 0;  // the step's; 0: the residual does not depend on it
};

// The parameters that change from step to step.
struct SynclineCudaStep {
  // Stochastic rounding hashes these, the tensor and the element (EncodeContext).
  uint64_t seed = 0;
  uint64_t step = 0;
  SynclineCudaUnits units = {};
};

struct SynclineCudaEncoding {
  uint32_t struct_bytes = sizeof(SynclineCudaEncoding);
  // Ordinal of the stream's device; -1: the calling thread's current device.
  int32_t device = -1;
  const void* gradient = nullptr;
  uint32_t dtype = 1;         // DType of the gradient (comm/base/dtype.h): 1, 2 or 3
  float* residual = nullptr;  // null: x is the gradient, and losses are not kept
  float decay = 1;
  uint64_t elements = 0;
  // The current step, or device memory where the kernels find it. Such memory is required
  // while the stream captures, if rounding is stochastic or tile_units is given
  // (otherwise the call fails with cudaErrorStreamCaptureUnsupported).
  SynclineCudaStep now = {};
  const SynclineCudaStep* now_on_device = nullptr;
  // Units of each tile's residual, SynclineCudaUnits{} at first. If they differ from the
  // step's units, the residual is converted as in GradientMemory. A step of learning rate
  // 0 sends the gradient alone, and leaves a residual of another rate unchanged. Null:
  // the units never change.
  SynclineCudaUnits* tile_units = nullptr;
  // The position of gradient[0] in its tensor, a multiple of 65,536.
  uint64_t first_element = 0;
  uint32_t tensor = 0;
  // Tile t is encoded at out + t * SynclineCudaTileStride, followed by zeros up to the
  // next multiple of 64 bytes.
  void* out = nullptr;
  // Bytes of each tile's encoding without these zeros. 0: x is not finite.
  uint32_t* tile_bytes = nullptr;
  // SynclineCudaWorkspaceBytes bytes with any content. They belong to this call until its
  // kernels have run. Calls on one stream may share them. Calls on two streams, or
  // overlapping replays of a graph, must not: kernels then trap if they detect it, and
  // otherwise write outside their arrays or never end.
  void* workspace = nullptr;
};

struct SynclineCudaDecoding {
  uint32_t struct_bytes = sizeof(SynclineCudaDecoding);
  int32_t device = -1;                   // as in SynclineCudaEncoding
  const void* bytes = nullptr;           // as Encode writes them
  const uint32_t* tile_bytes = nullptr;  // 0: nothing is added
  uint64_t stride = 0;                   // bytes from tile to tile, a multiple of 64
  float weight = 1;
  float* accumulator = nullptr;
  uint64_t elements = 0;
  // For each tile: 1 if it is not a valid encoding of `codec.id` and nothing of it was
  // added, otherwise 0.
  uint32_t* refused = nullptr;
};

// Returns the distance in bytes between encoded tiles: room for any full tile, a multiple
// of 64. Returns 0 if the codec does not exist.
size_t SynclineCudaTileStride(const SynclineCudaCodec* codec);

// Returns the bytes of workspace that Encode needs for `elements`; their content may be
// anything.
size_t SynclineCudaWorkspaceBytes(const SynclineCudaCodec* codec, uint64_t elements);

// Encodes the gradient. sparse: it sends exactly the k largest magnitudes, lower
// positions first among equals, and never a zero. If that is more than 31/32 of the tile,
// it sends the whole tile (comm/codec/sparse/selector.h). Positions use the index coder
// kU16 or kEvery.
int SynclineCudaEncode(const SynclineCudaCodec* codec,
                       const SynclineCudaEncoding* encoding, void* stream);

// Adds decoded tiles, with the same checks as Codec::DecodeAdd. sparse: it reads the
// index coders kU16 and kEvery, and values in fp32 and bf16 whatever codec->values is.
// The host must re-encode others (index_coder.h).
int SynclineCudaDecodeAdd(const SynclineCudaCodec* codec,
                          const SynclineCudaDecoding* decoding, void* stream);

// Returns the meaning of a returned error, for people; static storage.
const char* SynclineCudaErrorString(int error);
}
