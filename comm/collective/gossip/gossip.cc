#include "comm/collective/gossip/gossip.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/job_seed.h"
#include "comm/base/status.h"
#include "comm/codec/sparse/tensor_histogram.h"
#include "comm/collective/compressed/values_transfer.h"
#include "comm/collective/gossip/consensus.h"
#include "comm/collective/gossip/pair_delta.h"

namespace syncline::collective {
namespace {

constexpr std::string_view kWho = "gossip";
constexpr uint64_t kBlockElements = uint64_t{kTilesPerBlock} * kTileElements;

// Number of stages of a block (SendSize to Finish).
constexpr size_t kWays = 3;

// A digest and a size.
constexpr size_t kWordsOfSize = 2;

absl::Status CheckGamma(double gamma) {
  if (gamma > 0 && gamma <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("gamma is ", gamma,
                   ", but must be above 0 and at most 1: how far two partners move "
                   "towards each other; 0.5 is the mean of both"));
}

double GammaFor(const Transfer& transfer) {
  if (!transfer.compresses()) return 0.5;
  if (transfer.selector.has_value()) {
    const SelectorKind kind = transfer.selector->kind;
    const double ratio = std::clamp(transfer.selector->ratio, 1e-4, 1.0);
    // Values that are not sent are stale, but ranks move towards them all the same. The
    // second moment of two partners' difference shrinks up to gamma = ratio / 2, fastest
    // at about ratio / 5.
    if (kind == SelectorKind::kBlocks) return 0.5;  // lossless
    const bool is_random =
        kind == SelectorKind::kRandomK || kind == SelectorKind::kProportional;
    return is_random ? ratio / 5 : std::sqrt(ratio) / 2;
  }
  return transfer.codec->id() == CodecId::kSign ? 0.35 : 0.5;
}

// Returns the weight of a decoded difference. A selector that scales what it sends, so
// that it is right in the mean, has an error as large as the difference itself. Its
// values must not be applied fully.
float WeightOf(const Codec& codec) {
  const double variance = codec.traits().variance;
  const bool scales = codec.id() == CodecId::kSparse && variance >= 1;
  return scales ? static_cast<float>(1 / (1 + variance)) : 1.0f;
}

// Returns the codec's transfer without a memory, because pairs keep what encodings lose.
absl::StatusOr<Transfer> TransferOf(std::string_view codec) {
  SYNCLINE_ASSIGN_OR_RETURN(Transfer transfer, ValuesTransfer(codec, kWho));
  transfer.memory = {};
  return transfer;
}

std::string SettingsOf(const GossipOptions& options, double gamma) {
  const std::string_view base(reinterpret_cast<const char*>(options.base.data()),
                              options.base.size_bytes());
  return absl::StrCat(std::string(GossipGraphName(options.graph)), " ", options.codec,
                      " ", options.elements, " ", gamma, " ", options.seed, " ",
                      JobSeed(base));
}

}  // namespace

absl::Status Gossip::Check(std::string_view codec, double gamma) {
  SYNCLINE_RETURN_IF_ERROR(TransferOf(codec).status());
  return CheckGamma(gamma);
}

absl::StatusOr<double> Gossip::DefaultGamma(std::string_view codec) {
  SYNCLINE_ASSIGN_OR_RETURN(const Transfer transfer, TransferOf(codec));
  return GammaFor(transfer);
}

absl::StatusOr<std::unique_ptr<Gossip>> Gossip::Create(const GossipOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(Transfer transfer, TransferOf(options.codec));
  const double gamma = options.gamma == 0 ? GammaFor(transfer) : options.gamma;
  SYNCLINE_RETURN_IF_ERROR(CheckGamma(gamma));
  if (transfer.compresses() && options.base.size() != options.elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gossip of ", options.elements, " values with codec '", options.codec,
        "' must begin with the same number of values, known to all ranks, but was given ",
        options.base.size()));
  }
  return std::unique_ptr<Gossip>(new Gossip(options, std::move(transfer), gamma));
}

Gossip::Gossip(const GossipOptions& options, Transfer transfer, double gamma)
    : options_(options),
      transfer_(std::move(transfer)),
      dense_(DenseOf(transfer_)),
      gamma_(gamma),
      plan_({.graph = options.graph,
             .ranks = options.group->ranks(),
             .seed = options.seed}),
      settings_(SettingsOf(options, gamma)),
      memory_({}, options.elements),
      room_(Buffer::Allocate(
          MaxBlockBytes(transfer_.Accepted(), static_cast<uint32_t>(kBlockElements)))) {
  if (transfer_.compresses()) base_.assign(options.base.begin(), options.base.end());
}

Gossip::~Gossip() {
  const auto is_done = [&](const Piece& piece) {
    return (piece.sends == nullptr || options_.group->IsDone(piece.sends)) &&
           (piece.receives == nullptr || options_.group->IsDone(piece.receives));
  };
  if (std::ranges::all_of(pieces_, is_done)) return;
  options_.group->Abort();
  for (Piece& piece : pieces_) Wait(piece).IgnoreError();
}

absl::StatusOr<std::optional<int>> Gossip::Exchange(uint64_t round,
                                                    std::span<const float> values,
                                                    std::span<float> delta) {
  SYNCLINE_RETURN_IF_ERROR(failure_);
  if (values.size() != options_.elements || delta.size() != options_.elements) {
    return absl::InvalidArgumentError(
        absl::StrCat("the gossip was made for ", options_.elements,
                     " values, but was given ", values.size(), " and ", delta.size()));
  }
  const std::optional<int> partner = GossipPartner(plan_, round, options_.group->rank());
  if (!partner.has_value()) {
    std::ranges::fill(delta, 0.0f);
    SYNCLINE_RETURN_IF_ERROR(options_.group->status());
    return std::nullopt;
  }
  Meeting meeting = {
      .partner = *partner, .round = round, .values = values, .delta = delta};
  // Remains set if Run throws for lack of memory: operations may still use the pieces.
  failure_ = absl::AbortedError("an earlier exchange did not finish; form a new group");
  failure_ = Run(meeting);
  if (failure_.ok()) return partner;
  // If the group has failed already, the others know which rank is to blame.
  if (options_.group->status().ok()) options_.group->Abort();
  return failure_;
}

absl::Status Gossip::Run(Meeting& meeting) {
  meeting.pair = &PairWith(meeting.partner);
  meeting.threshold = ThresholdOf(meeting);
  pieces_.clear();
  uint64_t first = 0;
  do {  // once for no values, too: the partner may have some
    const uint64_t elements = std::min(options_.elements - first, kBlockElements);
    pieces_.push_back(
        {.range = {.first_element = first, .elements = static_cast<uint32_t>(elements)}});
    first += elements;
  } while (first < options_.elements);
  // Processes the oldest block first: while it is sent, the next one is encoded, and the
  // order of operations between the two ranks is the same on both.
  for (size_t turn = 0; turn < pieces_.size() + kWays - 1; ++turn) {
    const auto at = [&](size_t way) -> Piece* {
      return turn >= way && turn - way < pieces_.size() ? &pieces_[turn - way] : nullptr;
    };
    if (Piece* piece = at(2)) SYNCLINE_RETURN_IF_ERROR(Finish(meeting, *piece));
    if (Piece* piece = at(1)) SYNCLINE_RETURN_IF_ERROR(SendBlock(meeting, *piece));
    if (Piece* piece = at(0)) SYNCLINE_RETURN_IF_ERROR(SendSize(meeting, *piece));
  }
  return absl::OkStatus();
}

Gossip::Pair& Gossip::PairWith(int partner) {
  Pair& pair = pairs_[partner];
  if (transfer_.compresses() && pair.own.empty()) pair = {.own = base_, .its = base_};
  return pair;
}

uint64_t Gossip::kept_bytes() const {
  uint64_t values = base_.size();
  for (const auto& [partner, pair] : pairs_) values += pair.own.size() + pair.its.size();
  return values * sizeof(float);
}

std::span<const float> Gossip::Given(const Meeting& meeting, const BlockRange& range) {
  const auto values = meeting.values.subspan(range.first_element, range.elements);
  if (!transfer_.compresses()) return values;
  given_.resize(range.elements);
  const float* const known = meeting.pair->own.data() + range.first_element;
  for (size_t i = 0; i < values.size(); ++i) given_[i] = values[i] - known[i];
  return given_;
}

float Gossip::ThresholdOf(const Meeting& meeting) {
  const uint64_t count = transfer_.TensorTopCount(options_.elements, meeting.round);
  if (count == 0) return 0;
  TensorHistogram histogram;
  for (uint64_t first = 0; first < options_.elements; first += kTileElements) {
    histogram.Add(Given(meeting, {.first_element = first,
                                  .elements = static_cast<uint32_t>(std::min<uint64_t>(
                                      options_.elements - first, kTileElements))}));
  }
  return histogram.ThresholdFor(count);
}

absl::Status Gossip::SendSize(const Meeting& meeting, Piece& piece) {
  Encode(meeting, piece);
  piece.sizes_out = {Digest(meeting, piece), static_cast<int64_t>(piece.out.size())};
  piece.sizes_in.resize(kWordsOfSize);
  return Start(meeting,
               {.type = ElementType::kI64,
                .out = piece.sizes_out.data(),
                .out_count = kWordsOfSize,
                .in = piece.sizes_in.data(),
                .in_count = kWordsOfSize},
               piece);
}

absl::Status Gossip::SendBlock(const Meeting& meeting, Piece& piece) {
  SYNCLINE_RETURN_IF_ERROR(Wait(piece));
  const int64_t size = piece.sizes_in[1];
  if (piece.sizes_in[0] != Digest(meeting, piece) || size < 0 ||
      static_cast<size_t>(size) > room_.size()) {
    absl::Status differs = absl::FailedPreconditionError(absl::StrCat(
        "rank ", meeting.partner, " calls a different gossip from rank ",
        options_.group->rank(), ", with ", options_.elements, " values by graph ",
        std::string(GossipGraphName(options_.graph)), " as '", options_.codec,
        "' in round ", meeting.round,
        ": give all ranks the same graph, codec, size, gamma, seed and rounds"));
    SetFailedRank(differs, meeting.partner);
    return differs;
  }
  piece.in.resize(static_cast<size_t>(size));
  sent_bytes_ += piece.out.size();
  return Start(meeting,
               {.out = piece.out.data(),
                .out_count = piece.out.size(),
                .in = piece.in.data(),
                .in_count = piece.in.size()},
               piece);
}

absl::Status Gossip::Finish(const Meeting& meeting, Piece& piece) {
  SYNCLINE_RETURN_IF_ERROR(Wait(piece));
  const auto part = [&](std::vector<float>& kept, std::vector<float>& scratch) {
    if (transfer_.compresses()) {
      return std::span(kept).subspan(piece.range.first_element, piece.range.elements);
    }
    scratch.resize(piece.range.elements);
    return std::span(scratch);
  };
  const std::span<float> own = part(meeting.pair->own, own_);
  const std::span<float> its = part(meeting.pair->its, its_);
  SYNCLINE_RETURN_IF_ERROR(Decode(meeting, piece, options_.group->rank(), own));
  SYNCLINE_RETURN_IF_ERROR(Decode(meeting, piece, meeting.partner, its));
  PairDelta(static_cast<float>(gamma_), own, its,
            meeting.delta.subspan(piece.range.first_element, piece.range.elements));
  piece = {};
  return absl::OkStatus();
}

absl::Status Gossip::Start(const Meeting& meeting, const Swap& swap, Piece& piece) {
  const int self = options_.group->rank();
  Call call = {.op = CollectiveOp::kSendReceive,
               .type = swap.type,
               .label = "gossip",
               .timeout = options_.timeout};
  Call send = call;
  send.input = swap.out;
  send.count = swap.out_count;
  send.source = self;
  send.root = meeting.partner;
  SYNCLINE_ASSIGN_OR_RETURN(piece.sends, options_.group->Start(std::move(send)));
  call.output = swap.in;
  call.count = swap.in_count;
  call.source = meeting.partner;
  call.root = self;
  SYNCLINE_ASSIGN_OR_RETURN(piece.receives, options_.group->Start(std::move(call)));
  return absl::OkStatus();
}

absl::Status Gossip::Wait(Piece& piece) {
  // The group ends the operations at their own deadline.
  absl::Status status;
  for (Group::Handle* handle : {&piece.receives, &piece.sends}) {
    if (*handle == nullptr) continue;
    status.Update(options_.group->Wait(*handle, absl::InfiniteDuration()));
    *handle = nullptr;
  }
  return status;
}

void Gossip::Encode(const Meeting& meeting, Piece& piece) {
  if (piece.range.elements == 0) return;
  const Transfer& transfer = transfer_.CompressesAt(meeting.round) ? transfer_ : dense_;
  const std::span<const float> given = Given(meeting, piece.range);
  const auto self = static_cast<uint32_t>(options_.group->rank());
  BlockWriter writer({.range = piece.range, .step = meeting.round}, Checksum::kHeaderOnly,
                     room_.owner());
  for (uint32_t tile = 0; tile < TilesOf(given.size()); ++tile) {
    const uint64_t first = uint64_t{tile} * kTileElements;
    memory_.EncodeTile(
        transfer,
        {.gradient = given.subspan(first, TileElements(given.size(), tile)),
         .context = {.seed = SeedOfRank(options_.seed, self),
                     .step = meeting.round,
                     .first_element = piece.range.first_element + first,
                     .threshold = meeting.threshold}},
        writer, workspace_);
  }
  for (const Slice& slice : writer.Finish()) {
    piece.out.insert(piece.out.end(), slice.data, slice.data + slice.size);
  }
}

absl::Status Gossip::Decode(const Meeting& meeting, const Piece& piece, int rank,
                            std::span<float> known) const {
  if (known.empty()) return absl::OkStatus();
  const std::vector<std::byte>& bytes =
      rank == options_.group->rank() ? piece.out : piece.in;
  const auto view =
      ParseBlock({bytes.data(), bytes.size()},
                 {.range = piece.range, .step = meeting.round}, transfer_.Accepted());
  if (!view.ok()) {
    absl::Status broken = absl::DataLossError(absl::StrCat(
        "rank ", rank,
        " sent a block that cannot be decoded: ", std::string(view.status().message())));
    SetFailedRank(broken, rank);
    return broken;
  }
  for (const TileView& tile : view->tiles) {
    const auto to = known.subspan(tile.first_element, tile.elements);
    SYNCLINE_RETURN_IF_ERROR(
        transfer_.compresses()
            ? tile.codec->DecodeAdd(tile.bytes, WeightOf(*tile.codec), to)
            : tile.codec->Decode(tile.bytes, to));
  }
  return absl::OkStatus();
}

int64_t Gossip::Digest(const Meeting& meeting, const Piece& piece) const {
  return static_cast<int64_t>(JobSeed(
      absl::StrCat(settings_, " ", meeting.round, " ", piece.range.first_element)));
}

absl::StatusOr<double> Gossip::Distance(std::span<const float> values) {
  SYNCLINE_RETURN_IF_ERROR(failure_);
  return ConsensusDistance(*options_.group, values, options_.seed, options_.timeout);
}

}  // namespace syncline::collective
