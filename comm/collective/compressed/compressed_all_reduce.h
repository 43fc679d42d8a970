// An all-reduce that sends encoded values, for ranks whose connections are slow. It
// computes the mean of one FP32 tensor, with any codec and with error feedback in both
// directions.
//
// A tensor is cut into rounds of one block for each rank. In each round, all ranks send a
// rank its block, encoded together with what earlier encodings of it lost. That rank
// computes the mean and sends it to all, encoded in the same way. All ranks, including
// the block's own, decode the same bytes, so the results are equal in all bits. 1-bit
// Adam calls this form compressed_allreduce (Tang et al. 2021, arXiv 2102.02888, section
// 4). For a tensor of many tiles, a rank sends 2 (ranks - 1) / ranks of the encoded size,
// as a ring does of the plain size. A tensor with fewer tiles than ranks is reduced by
// the first ranks alone. While the blocks of one round are sent, those of the next are
// encoded.
//
// Thread safety: one thread at a time. All ranks must run the group's operations of all
// its reductions in the same order: give the reductions of several threads separate
// groups.
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
  Group* group = nullptr;  // must outlive the reduction
  // See CheckCodec. Vectors and small tensors are compressed as well; for both kinds of
  // tensors use two reductions.
  std::string codec = "onebit";
  uint64_t elements = 0;
  // For codecs that round at random; the same on all ranks.
  uint64_t seed = 0;
  // Timeout of each of the group's operations. Zero: the group's timeout.
  absl::Duration timeout = absl::ZeroDuration();
};

class CompressedAllReduce {
 public:
  // Fails with InvalidArgument if the codec does not exist, needs more than the values (a
  // matrix, a vote, a choice from step to step), or has options that choose among tensors
  // (min_elements, vectors).
  static absl::Status CheckCodec(std::string_view codec);
  // Fails like CheckCodec. Does not communicate with other ranks.
  static absl::StatusOr<std::unique_ptr<CompressedAllReduce>> Create(
      const CompressedOptions& options);

  // Ends the group if operations are in progress, which happens only after a failure.
  ~CompressedAllReduce();

  // Replaces `values` by their mean over the ranks. This is a collective operation of the
  // group. It fails with InvalidArgument, and does nothing, if the number of values
  // differs from options.elements. It fails with FailedPrecondition on all ranks if their
  // codecs, sizes, seeds or numbers of calls differ. Any other error is the group's, or
  // ends the group, so that no rank waits for this one. After an error the values are
  // undefined, and all further calls return the error. Create another group and another
  // reduction, which starts with no residual.
  absl::Status Mean(std::span<float> values);

  // Bytes of the blocks that this rank has sent, without sizes and headers of operations.
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  // One block of each rank, while it is reduced.
  struct Round {
    uint64_t first = 0;      // element of the tensor
    uint64_t elements = 0;   // of all blocks
    uint64_t pitch = 0;      // elements from one rank's block to the next
    uint64_t own_first = 0;  // element of means_
    std::vector<int64_t> sizes_out = {};
    std::vector<int64_t> sizes_in = {};
    std::vector<std::byte> out = {};
    std::vector<std::byte> in = {};
    Group::Handle handle = nullptr;  // the operation that the next stage waits for
  };

  CompressedAllReduce(const CompressedOptions& options, Transfer transfer);

  // What to encode, as a part of the tensor and of a memory.
  struct Block {
    BlockRange range = {};
    uint64_t epoch = 0;  // 0: the rank's values, 1: a mean
    uint64_t seed = 0;
    std::span<const float> values = {};
    uint64_t kept_at = 0;  // element of the memory
    float threshold = 0;
  };

  std::vector<Round> CutIntoRounds() const;
  uint64_t OwnElements() const;  // in the blocks whose mean this rank computes
  BlockRange BlockOf(const Round& round, int rank) const;

  // The stages of a round, in order. Each waits for the operation of the previous stage,
  // and all but the last start another operation.
  absl::Status SendSizes(Round& round, std::span<const float> values);
  absl::Status SendBlocks(Round& round);
  absl::Status TakeMean(Round& round);
  absl::Status SendMean(Round& round);
  absl::Status Finish(Round& round, std::span<float> values);

  absl::Status Start(Round& round, Call call);
  absl::Status Wait(Round& round);
  // Returns a digest of what all ranks must agree on.
  int64_t Digest(const Round& round) const;
  void Encode(const Transfer& transfer, GradientMemory& memory, const Block& block,
              std::vector<std::byte>& out);
  absl::Status Decode(ByteView bytes, const BlockLabel& label, int rank,
                      absl::FunctionRef<absl::Status(const TileView&)> take) const;
  absl::Status Run(std::span<float> values);

  const CompressedOptions options_;
  const Transfer transfer_;  // for the rank's values
  const Transfer back_;      // for means
  const Transfer dense_;     // for the first steps, if the codec asks for it
  GradientMemory given_;     // for all elements
  GradientMemory means_;     // for the blocks whose mean this rank computes
  GradientMemory::Workspace workspace_;
  Buffer room_;  // for the block that is being encoded
  std::vector<float> mean_;
  float threshold_ = 0;        // for top-k over the whole tensor
  std::vector<Round> rounds_;  // the current call's; operations access them
  absl::Status failure_;
  uint64_t step_ = 0;
  uint64_t sent_bytes_ = 0;
};

}  // namespace syncline::collective
