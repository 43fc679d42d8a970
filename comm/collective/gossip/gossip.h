// Gossip: each rank has its own values. In each round, pairs of partners bring their
// values nearer to each other, without servers, roots or an operation of all ranks.
//
// A dense codec (fp32, bf16, fp16) sends the values themselves. Any other codec sends the
// change since the two partners met last. For each partner so far, a rank keeps what the
// partner knows of its values and what it knows of the partner's (y of pair_delta.h).
// Both add the decoded difference to it. What an encoding loses is part of the next
// difference, so nothing is lost for good. This is CHOCO-SGD (Koloskova et al. 2019,
// arXiv 1902.00340), but with estimates for each pair instead of each rank, because
// partners change. The estimates start from values that all ranks know,
// GossipOptions::base. Both partners apply the same delta with opposite signs. So the sum
// of all ranks' values is conserved (pair_delta.h) for any codec, gamma and graph.
//
// Thread safety: one thread at a time. Meanwhile no other code may send or receive in the
// group.
//
//   auto gossip = Gossip::Create({.group = &group, .codec = "int8", .elements = x.size(),
//                                 .base = x});
//   std::vector<float> delta(x.size());
//   for (uint64_t round = 0;; ++round) {
//     Train(x);
//     const auto partner = (*gossip)->Exchange(round, x, delta);
//     for (size_t i = 0; i < x.size(); ++i) x[i] += delta[i];
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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
#include "comm/collective/gossip/graph.h"
#include "comm/collective/group/group.h"
#include "comm/compression/memory/gradient_memory.h"
#include "comm/compression/transfer.h"

namespace syncline::collective {

struct GossipOptions {
  Group* group = nullptr;  // must outlive the gossip
  GossipGraph graph = GossipGraph::kExponential;
  std::string codec = "fp32";  // see Gossip::Check
  uint64_t elements = 0;
  // How far partners move towards each other, in (0, 1]; 1/2 is the mean of both. 0:
  // DefaultGamma.
  double gamma = 0;
  // For the random graph, and for codecs that round at random; the same on all ranks.
  uint64_t seed = 0;
  // For codecs that are not dense: values that are the same on all ranks, and near each
  // rank's values. Used only by Create.
  std::span<const float> base = {};
  // Timeout of each of the group's operations. Zero: the group's timeout.
  absl::Duration timeout = absl::ZeroDuration();
};

class Gossip {
 public:
  // Fails with InvalidArgument if the codec does not exist or needs servers or a matrix,
  // or if gamma is outside (0, 1].
  static absl::Status Check(std::string_view codec, double gamma);
  // Returns 1/2 for dense codecs and quantizers, 0.35 for signs, sqrt(ratio) / 2 for
  // top-k, and ratio / 5 for selection at random. The less an encoding contains, the
  // shorter the steps that still converge.
  static absl::StatusOr<double> DefaultGamma(std::string_view codec);

  // Fails like Check, and if the base has another size. Does not communicate with other
  // ranks.
  static absl::StatusOr<std::unique_ptr<Gossip>> Create(const GossipOptions& options);
  // Ends the group if operations are in progress, which happens only after a failure.
  ~Gossip();

  // Exchanges `values` with this round's partner, and writes to `delta` what to add to
  // them. Returns the partner, or nullopt if this rank is idle in the round; then delta
  // is all 0. All ranks must call it for the same rounds, in order; all may skip a round.
  // Fails with InvalidArgument, and does nothing, if the number of values differs from
  // options.elements. Fails with FailedPrecondition if the partner's settings or round
  // differ. Any other error is the group's, or ends the group. After an error delta is
  // undefined and all further calls return the error: create another group.
  absl::StatusOr<std::optional<int>> Exchange(uint64_t round,
                                              std::span<const float> values,
                                              std::span<float> delta);

  // Returns ConsensusDistance over the group, with the same seed.
  absl::StatusOr<double> Distance(std::span<const float> values);

  double gamma() const { return gamma_; }
  // Bytes of the blocks that this rank has sent, without sizes and headers of operations.
  uint64_t sent_bytes() const { return sent_bytes_; }
  // Bytes of the FP32 values that are kept for partners: 2 for each value and partner.
  uint64_t kept_bytes() const;

 private:
  // What two partners know of each other's values. Empty with a dense codec.
  struct Pair {
    std::vector<float> own = {};
    std::vector<float> its = {};
  };
  // A block while it is exchanged.
  struct Piece {
    BlockRange range = {};
    std::vector<int64_t> sizes_out = {};
    std::vector<int64_t> sizes_in = {};
    std::vector<std::byte> out = {};
    std::vector<std::byte> in = {};
    Group::Handle sends = nullptr;
    Group::Handle receives = nullptr;
  };
  // The arguments and state of one exchange.
  struct Meeting {
    int partner = 0;
    uint64_t round = 0;
    std::span<const float> values = {};
    std::span<float> delta = {};
    Pair* pair = nullptr;
    float threshold = 0;  // for top-k over all values
  };

  Gossip(const GossipOptions& options, Transfer transfer, double gamma);

  absl::Status Run(Meeting& meeting);
  Pair& PairWith(int partner);
  float ThresholdOf(const Meeting& meeting);
  // Returns what to encode of a block: its values, or the change since the last exchange.
  std::span<const float> Given(const Meeting& meeting, const BlockRange& range);

  // The stages of a block, in order. Each waits for the previous one.
  absl::Status SendSize(const Meeting& meeting, Piece& piece);
  absl::Status SendBlock(const Meeting& meeting, Piece& piece);
  absl::Status Finish(const Meeting& meeting, Piece& piece);

  struct Swap {
    ElementType type = ElementType::kU8;
    const void* out = nullptr;
    size_t out_count = 0;
    void* in = nullptr;
    size_t in_count = 0;
  };
  absl::Status Start(const Meeting& meeting, const Swap& swap, Piece& piece);
  absl::Status Wait(Piece& piece);
  void Encode(const Meeting& meeting, Piece& piece);
  // Adds to `known`, or replaces it if the codec is dense.
  absl::Status Decode(const Meeting& meeting, const Piece& piece, int rank,
                      std::span<float> known) const;
  int64_t Digest(const Meeting& meeting, const Piece& piece) const;

  const GossipOptions options_;
  const Transfer transfer_;
  const Transfer dense_;  // for the first rounds, if the codec asks for it
  const double gamma_;
  const GossipPlan plan_;
  const std::string settings_;  // partners must have the same
  std::vector<float> base_;
  std::map<int, Pair> pairs_;
  GradientMemory memory_;  // keeps only what codecs ask for
  GradientMemory::Workspace workspace_;
  Buffer room_;               // for the block that is being encoded
  std::vector<float> given_;  // for a block
  std::vector<float> own_, its_;
  std::vector<Piece> pieces_;  // the current call's; operations access them
  absl::Status failure_;
  uint64_t sent_bytes_ = 0;
};

}  // namespace syncline::collective
