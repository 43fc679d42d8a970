// An all-reduce whose values travel encoded, for ranks between which bytes are dear: the
// mean of one FP32 tensor, with any codec and with error feedback on both ways.
//
// A tensor is cut into rounds of one block for each rank. All send a rank its block of
// each round, encoded together with what earlier encodings lost of it; that rank takes
// the mean and gives it to all, encoded likewise. Everybody decodes the same bytes, the
// block's own rank as well: the results are equal in all bits. It is the form that 1-bit
// Adam calls compressed_allreduce (Tang et al. 2021, arXiv 2102.02888, section 4). Of
// tensors of many tiles a rank sends 2 (ranks - 1) / ranks of the encoded size, as a ring
// does of the plain one; one of fewer tiles than ranks is the work of the first ranks.
// While the blocks of a round travel, those of the next are encoded.
//
// Thread safety: one thread at a time. The group's operations of all reductions that use
// it come in one order on all ranks: give reductions of several threads a group each.
//
//   auto reduce = CompressedAllReduce::Create(
//       {.group = &group, .codec = "onebit", .elements = gradient.size()});
//   absl::Status status = (*reduce)->Mean(gradient);  // in place
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/base/buffer.h"
#include "comm/base/tiling.h"
#include "comm/codec/frame.h"
#include "comm/collective/group/group.h"
#include "comm/compression/memory/gradient_memory.h"
#include "comm/compression/transfer.h"

namespace syncline::collective {

struct CompressedOptions {
  Group* group = nullptr;  // outlives the reduction
  // CheckCodec. Vectors and small tensors are compressed as well: whoever has both kinds
  // makes two reductions.
  std::string codec = "onebit";
  uint64_t elements = 0;
  // Of codecs that round at random; the same on all ranks.
  uint64_t seed = 0;
  // Of each of the group's operations; zero: the group's.
  absl::Duration timeout = absl::ZeroDuration();
};

class CompressedAllReduce {
 public:
  // InvalidArgument: no such codec, or one that needs more than values (a matrix, a vote,
  // a choice from step to step), or chooses among tensors (min_elements, vectors).
  static absl::Status CheckCodec(std::string_view codec);
  // The same errors. Says nothing to other ranks.
  static absl::StatusOr<std::unique_ptr<CompressedAllReduce>> Create(
      const CompressedOptions& options);

  // Ends the group where operations are under way, which only a failure leaves behind.
  ~CompressedAllReduce();

  // Replaces `values` by their mean over the ranks, a collective operation of the group.
  // InvalidArgument: another number of values; nothing was begun. FailedPrecondition: the
  // ranks' codecs, sizes, seeds or numbers of calls differ, and all know it. Any other
  // error is the group's, or ends it, so that no rank waits for this one. After an error
  // the values are undefined, and all further calls return it: form another group and
  // make another one, which begins with nothing kept.
  absl::Status Mean(std::span<float> values);

  // Bytes that this rank has sent as blocks, without sizes and headers of operations.
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  // One block of each rank on its way.
  struct Round {
    uint64_t first = 0;      // element of the tensor
    uint64_t elements = 0;   // of all blocks
    uint64_t pitch = 0;      // elements from one rank's block to the next's
    uint64_t own_first = 0;  // element of means_
    std::vector<int64_t> sizes_out = {};
    std::vector<int64_t> sizes_in = {};
    std::vector<std::byte> out = {};
    std::vector<std::byte> in = {};
    Group::Handle handle = nullptr;  // of the operation that the next way waits for
  };

  CompressedAllReduce(const CompressedOptions& options, Transfer transfer);

  // What to encode, as a part of the tensor and of a memory.
  struct Block {
    BlockRange range = {};
    uint64_t epoch = 0;  // 0: given, 1: a mean
    uint64_t seed = 0;
    std::span<const float> values = {};
    uint64_t kept_at = 0;  // element of the memory
    float threshold = 0;
  };

  std::vector<Round> CutIntoRounds() const;
  uint64_t OwnElements() const;  // of all blocks that this rank takes the mean of
  BlockRange BlockOf(const Round& round, int rank) const;

  // The ways of a round, in order. Each waits for the operation of the one before, and all
  // but the last begin another.
  absl::Status SendSizes(Round& round, std::span<const float> values);
  absl::Status SendBlocks(Round& round);
  absl::Status TakeMean(Round& round);
  absl::Status SendMean(Round& round);
  absl::Status Finish(Round& round, std::span<float> values);

  absl::Status Start(Round& round, Call call);
  absl::Status Wait(Round& round);
  // What all ranks must agree on.
  int64_t Digest(const Round& round) const;
  void Encode(const Transfer& transfer, GradientMemory& memory, const Block& block,
              std::vector<std::byte>& out);
  absl::Status Decode(ByteView bytes, const BlockLabel& label, int rank,
                      absl::FunctionRef<absl::Status(const TileView&)> take) const;
  absl::Status Run(std::span<float> values);

  const CompressedOptions options_;
  const Transfer transfer_;  // of what is given
  const Transfer back_;      // of means
  const Transfer dense_;     // of the first steps, if the codec says so
  GradientMemory given_;     // of all elements
  GradientMemory means_;     // of the blocks that this rank takes the mean of
  GradientMemory::Workspace workspace_;
  Buffer room_;  // of the block that is being encoded
  std::vector<float> mean_;
  float threshold_ = 0;        // of the whole tensor, for top-k
  std::vector<Round> rounds_;  // of the call; operations read and write them
  absl::Status failure_;
  uint64_t step_ = 0;
  uint64_t sent_bytes_ = 0;
};

}  // namespace syncline::collective
