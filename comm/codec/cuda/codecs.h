// The codecs of comm/codec on the device: the same encodings, byte for byte, and the same
// residuals, bit for bit, as Codec::Encode and GradientMemory (error feedback) on a CPU.
//
// Encode reads a gradient and the residual once, tile by tile of 65,536 elements:
//
//   x = gradient + decay * residual;  out = C(x);  residual = x - C(x)
//
// A tile whose x holds NaN or infinity is not encoded, and its residual stays as it was;
// the caller sends its gradient densely, as GradientMemory does. DecodeAdd adds weight
// times the decoded tiles to an FP32 accumulator.
//
//   const SynclineCudaCodec codec = {.id = 5, .block_log2 = 12};
//   const size_t stride = SynclineCudaTileStride(&codec);          // of a tile in `out`
//   const size_t workspace = SynclineCudaWorkspaceBytes(&codec, n);
//   SynclineCudaEncode(&codec, &encoding, stream);
//
// All pointers of the structs are memory of the stream's device, or all but `workspace`
// also page-locked memory of the host (memory.h), which is slower; aligned to 16 bytes,
// `out` and `bytes` to 64. None may be null unless its comment says so, or there are no
// elements. Arrays must not overlap. Thread-safe, as long as each call has arrays of its
// own.
//
// The functions only enqueue on the caller's stream: they allocate nothing and do not
// synchronise. They may be captured into a CUDA graph, but what a struct says by value is
// the same at each replay: give `now_on_device`, which the kernels read when they run.
//
// They return the cudaError_t of what they enqueued, 0 is success, cudaErrorInvalidValue
// for what a comment forbids; an error that something else left behind is not theirs.
// Errors of the kernels come with the stream's next synchronisation, as always. After
// any error but cudaErrorInvalidValue a part of the tiles may have been encoded: then
// `residual`, `tile_units` and `out` are undefined, and calling again would count a
// gradient twice. Zero the residual, or restore a copy of it, before going on.
//
// C linkage and void* for the stream, because the product finds these by name in a module
// opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct SynclineCudaCodec {
  // Of the caller's struct; another size than the module's is refused.
  uint32_t struct_bytes = sizeof(SynclineCudaCodec);
  // CodecId (comm/codec/codec.h): 5 sign, 6 int8, 16 sparse top-k; decoding also 2 bf16.
  uint32_t id = 0;
  // sign, int8: log2 of the elements that share a scale, 8 to 16. Decoders take any.
  uint32_t block_log2 = 12;
  // int8: 0 rounds to nearest, 1 at random.
  uint32_t stochastic = 0;
  // sparse: CodecId of the values, 1 fp32 or 2 bf16. What would round to an infinite
  // BF16 is sent as the largest finite one, and the rest stays in the residual.
  uint32_t values = 1;
  // sparse: the share of a tile's elements that is sent, in (0, 1].
  double ratio = 0.01;
};

// What gradients are measured in (GradientUnits of comm/compression/memory).
struct SynclineCudaUnits {
  float loss_scale = 1;     // they are a multiple by it
  float learning_rate = 0;  // of the step; 0: what is kept does not follow it
};

// What changes from step to step.
struct SynclineCudaStep {
  // What stochastic rounding hashes (EncodeContext), with the tensor and the element.
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
  float* residual = nullptr;  // null: x is the gradient, and what is lost is lost
  float decay = 1;
  uint64_t elements = 0;
  // The step that this is, or device memory where the kernels find it. The latter is
  // needed (otherwise cudaErrorStreamCaptureUnsupported) while the stream captures, when
  // rounding is stochastic or tile_units is given.
  SynclineCudaStep now = {};
  const SynclineCudaStep* now_on_device = nullptr;
  // Units of each tile's residual, SynclineCudaUnits{} at first: a residual is converted
  // as GradientMemory does it where they differ from the step's. A step of learning rate
  // 0 sends the gradient alone, and leaves a residual of another rate as it is. Null: the
  // units never change.
  SynclineCudaUnits* tile_units = nullptr;
  // The position of gradient[0] in its tensor, a multiple of 65,536.
  uint64_t first_element = 0;
  uint32_t tensor = 0;
  // Tile t is encoded at out + t * SynclineCudaTileStride, with zeros after it up to the
  // next multiple of 64 bytes.
  void* out = nullptr;
  // Bytes of each tile's encoding without these zeros; 0: x is not finite.
  uint32_t* tile_bytes = nullptr;
  // SynclineCudaWorkspaceBytes of any content. It belongs to this call until its kernels
  // have run: calls on one stream may share it, calls on two streams never, nor may two
  // replays of a graph that overlap. Kernels that find it in other hands trap if they
  // can tell, and otherwise write outside their arrays or never end.
  void* workspace = nullptr;
};

struct SynclineCudaDecoding {
  uint32_t struct_bytes = sizeof(SynclineCudaDecoding);
  int32_t device = -1;                   // as in SynclineCudaEncoding
  const void* bytes = nullptr;           // as Encode leaves them
  const uint32_t* tile_bytes = nullptr;  // 0: nothing is added
  uint64_t stride = 0;                   // from tile to tile, a multiple of 64
  float weight = 1;
  float* accumulator = nullptr;
  uint64_t elements = 0;
  // For each tile, 1 if it is no encoding of `codec.id`, and nothing of it was added;
  // otherwise 0.
  uint32_t* refused = nullptr;
};

// Bytes from one encoded tile to the next: room for any full tile, a multiple of 64.
// 0: no such codec.
size_t SynclineCudaTileStride(const SynclineCudaCodec* codec);

// What Encode needs beside its arrays for so many elements; its content may be anything.
size_t SynclineCudaWorkspaceBytes(const SynclineCudaCodec* codec, uint64_t elements);

// sparse: exactly the k largest magnitudes, lower positions first among equals, never a
// zero, all if that is more than 31/32 of them (comm/codec/sparse/selector.h); written
// with the index coder kU16, or kEvery.
int SynclineCudaEncode(const SynclineCudaCodec* codec,
                       const SynclineCudaEncoding* encoding, void* stream);

// Checks as Codec::DecodeAdd does. sparse: index coders kU16 and kEvery, values fp32 and
// bf16, whatever codec->values says; a host re-encodes others (index_coder.h).
int SynclineCudaDecodeAdd(const SynclineCudaCodec* codec,
                          const SynclineCudaDecoding* decoding, void* stream);

// What a returned error means, for people; static storage.
const char* SynclineCudaErrorString(int error);
}
