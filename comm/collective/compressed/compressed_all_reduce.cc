#include "comm/collective/compressed/compressed_all_reduce.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/job_seed.h"
#include "comm/base/status.h"
#include "comm/codec/frame.h"
#include "comm/codec/sparse/tensor_histogram.h"
#include "comm/collective/compressed/values_transfer.h"

namespace syncline::collective {
namespace {

constexpr uint64_t kBlockElements = uint64_t{kTilesPerBlock} * kTileElements;

// Number of stages of a round (SendSizes to Finish).
constexpr size_t kWays = 5;

// A digest and a size for each rank.
constexpr size_t kWordsOfSize = 2;

// The residual of a mean's sender does not depend on steps, so momentum does not apply to
// it.
Transfer OfMeans(const Transfer& transfer) {
  Transfer back = transfer;
  if (back.memory.kind == MemoryKind::kMomentumCorrection) {
    back.memory = {.kind = MemoryKind::kErrorFeedback};
  }
  return back;
}

constexpr std::string_view kWho = "an all-reduce";

}  // namespace

absl::Status CompressedAllReduce::CheckCodec(std::string_view codec) {
  return ValuesTransfer(codec, kWho).status();
}

absl::StatusOr<std::unique_ptr<CompressedAllReduce>> CompressedAllReduce::Create(
    const CompressedOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(Transfer transfer, ValuesTransfer(options.codec, kWho));
  return std::unique_ptr<CompressedAllReduce>(
      new CompressedAllReduce(options, std::move(transfer)));
}

CompressedAllReduce::CompressedAllReduce(const CompressedOptions& options,
                                         Transfer transfer)
    : options_(options),
      transfer_(std::move(transfer)),
      back_(OfMeans(transfer_)),
      dense_(DenseOf(transfer_)),
      given_(transfer_.memory, transfer_.compresses() ? options.elements : 0),
      means_(back_.memory, back_.compresses() ? OwnElements() : 0),
      room_(Buffer::Allocate(
          MaxBlockBytes(transfer_.Accepted(), static_cast<uint32_t>(kBlockElements)))) {}

CompressedAllReduce::~CompressedAllReduce() {
  const auto is_done = [&](const Round& round) {
    return round.handle == nullptr || options_.group->IsDone(round.handle);
  };
  if (std::ranges::all_of(rounds_, is_done)) return;
  options_.group->Abort();
  for (Round& round : rounds_) {
    if (round.handle != nullptr) Wait(round).IgnoreError();
  }
}

absl::Status CompressedAllReduce::Mean(std::span<float> values) {
  SYNCLINE_RETURN_IF_ERROR(failure_);
  if (values.size() != options_.elements) {
    return absl::InvalidArgumentError(
        absl::StrCat("the all-reduce was made for ", options_.elements,
                     " values, but was given ", values.size()));
  }
  if (options_.group->ranks() == 1) return options_.group->status();
  // Remains set if Run throws for lack of memory: operations may still use the rounds.
  failure_ = absl::AbortedError("an earlier call did not finish; form a new group");
  failure_ = Run(values);
  const bool all_know = failure_.code() == absl::StatusCode::kFailedPrecondition;
  if (!failure_.ok() && !all_know) options_.group->Abort();
  return failure_;
}

absl::Status CompressedAllReduce::Run(std::span<float> values) {
  threshold_ = 0;
  const uint64_t count = transfer_.TensorTopCount(values.size(), step_);
  if (count > 0) {
    TensorHistogram histogram;
    for (uint32_t tile = 0; tile < TilesOf(values.size()); ++tile) {
      const size_t first = size_t{tile} * kTileElements;
      const std::span<const float> given =
          values.subspan(first, TileElements(values.size(), tile));
      histogram.Add(given_.Preview(
          {.gradient = given, .context = {.first_element = first}}, workspace_));
    }
    threshold_ = histogram.ThresholdFor(count);
  }
  rounds_ = CutIntoRounds();
  // Processes the oldest round first: its operation began first, and the order of
  // operations is the same on all ranks.
  for (size_t turn = 0; turn < rounds_.size() + kWays - 1; ++turn) {
    const auto at = [&](size_t way) -> Round* {
      return turn >= way && turn - way < rounds_.size() ? &rounds_[turn - way] : nullptr;
    };
    if (Round* round = at(4)) SYNCLINE_RETURN_IF_ERROR(Finish(*round, values));
    if (Round* round = at(3)) SYNCLINE_RETURN_IF_ERROR(SendMean(*round));
    if (Round* round = at(2)) SYNCLINE_RETURN_IF_ERROR(TakeMean(*round));
    if (Round* round = at(1)) SYNCLINE_RETURN_IF_ERROR(SendBlocks(*round));
    if (Round* round = at(0)) SYNCLINE_RETURN_IF_ERROR(SendSizes(*round, values));
  }
  ++step_;
  return absl::OkStatus();
}

std::vector<CompressedAllReduce::Round> CompressedAllReduce::CutIntoRounds() const {
  const auto ranks = static_cast<uint64_t>(options_.group->ranks());
  std::vector<Round> rounds;
  uint64_t own_first = 0;
  uint64_t first = 0;
  do {  // once for no elements, too: other ranks may have some
    const uint64_t elements = std::min(options_.elements - first, ranks * kBlockElements);
    const uint64_t tiles = (TilesOf(elements) + ranks - 1) / ranks;
    rounds.push_back({.first = first,
                      .elements = elements,
                      .pitch = tiles * kTileElements,
                      .own_first = own_first});
    first += elements;
    own_first += tiles * kTileElements;
  } while (first < options_.elements);
  return rounds;
}

uint64_t CompressedAllReduce::OwnElements() const {
  const std::vector<Round> rounds = CutIntoRounds();
  return rounds.back().own_first + rounds.back().pitch;
}

BlockRange CompressedAllReduce::BlockOf(const Round& round, int rank) const {
  const uint64_t begin =
      std::min(static_cast<uint64_t>(rank) * round.pitch, round.elements);
  const uint64_t end = std::min(begin + round.pitch, round.elements);
  return {.first_element = round.first + begin,
          .elements = static_cast<uint32_t>(end - begin)};
}

absl::Status CompressedAllReduce::SendSizes(Round& round, std::span<const float> values) {
  const int ranks = options_.group->ranks();
  const auto self = static_cast<uint32_t>(options_.group->rank());
  for (int rank = 0; rank < ranks; ++rank) {
    const BlockRange range = BlockOf(round, rank);
    const size_t before = round.out.size();
    Encode(transfer_, given_,
           {.range = range,
            .seed = SeedOfRank(options_.seed, self),
            .values = values.subspan(range.first_element, range.elements),
            .kept_at = range.first_element,
            .threshold = threshold_},
           round.out);
    round.sizes_out.push_back(Digest(round));
    round.sizes_out.push_back(static_cast<int64_t>(round.out.size() - before));
  }
  round.sizes_in.resize(round.sizes_out.size());
  return Start(round, {.op = CollectiveOp::kAllToAll,
                       .type = ElementType::kI64,
                       .input = round.sizes_out.data(),
                       .output = round.sizes_in.data(),
                       .count = kWordsOfSize});
}

absl::Status CompressedAllReduce::SendBlocks(Round& round) {
  SYNCLINE_RETURN_IF_ERROR(Wait(round));
  const auto ranks = static_cast<size_t>(options_.group->ranks());
  const auto self = options_.group->rank();
  const size_t most = room_.size();
  Call call = {.op = CollectiveOp::kAllToAll, .type = ElementType::kU8};
  size_t all = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const int64_t size = round.sizes_in[rank * kWordsOfSize + 1];
    if (round.sizes_in[rank * kWordsOfSize] != Digest(round) || size < 0 ||
        static_cast<size_t>(size) > most) {
      absl::Status differs = absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " calls a different compressed all-reduce from rank ", self,
          ", with ", options_.elements, " values as '", options_.codec, "' in call ",
          step_, ": give all ranks the same codec, size, seed and number of calls"));
      SetFailedRank(differs, static_cast<int>(rank));
      return differs;
    }
    call.send_counts.push_back(
        static_cast<size_t>(round.sizes_out[rank * kWordsOfSize + 1]));
    call.receive_counts.push_back(static_cast<size_t>(size));
    all += call.receive_counts.back();
    if (static_cast<int>(rank) != self) sent_bytes_ += call.send_counts.back();
  }
  round.in.resize(all);
  call.input = round.out.data();
  call.output = round.in.data();
  return Start(round, std::move(call));
}

absl::Status CompressedAllReduce::TakeMean(Round& round) {
  SYNCLINE_RETURN_IF_ERROR(Wait(round));
  const int ranks = options_.group->ranks();
  const int self = options_.group->rank();
  const BlockRange range = BlockOf(round, self);
  mean_.assign(range.elements, 0);
  const std::byte* bytes = round.in.data();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto size =
        static_cast<size_t>(round.sizes_in[static_cast<size_t>(rank) * kWordsOfSize + 1]);
    SYNCLINE_RETURN_IF_ERROR(Decode(
        {bytes, size}, {.range = range, .step = step_}, rank, [&](const TileView& tile) {
          return tile.codec->DecodeAdd(
              tile.bytes, 1.0f / static_cast<float>(ranks),
              std::span(mean_).subspan(tile.first_element, tile.elements));
        }));
    bytes += size;
  }
  round.out.clear();
  Encode(back_, means_,
         {.range = range,
          .epoch = 1,
          .seed = SeedOfRank(options_.seed, static_cast<uint32_t>(ranks + self)),
          .values = mean_,
          .kept_at = round.own_first},
         round.out);
  round.sizes_out = {static_cast<int64_t>(round.out.size())};
  round.sizes_in.resize(static_cast<size_t>(ranks));
  return Start(round, {.op = CollectiveOp::kAllGather,
                       .type = ElementType::kI64,
                       .input = round.sizes_out.data(),
                       .output = round.sizes_in.data(),
                       .count = 1});
}

// Uses all-to-all because blocks differ in length, while an all-gather needs equal ones.
absl::Status CompressedAllReduce::SendMean(Round& round) {
  SYNCLINE_RETURN_IF_ERROR(Wait(round));
  const auto ranks = static_cast<size_t>(options_.group->ranks());
  Call call = {.op = CollectiveOp::kAllToAll, .type = ElementType::kU8};
  size_t all = 0;
  for (const int64_t size : round.sizes_in) {
    if (size < 0 || static_cast<size_t>(size) > room_.size()) {
      return absl::DataLossError(
          "a rank announced a block that is longer than any valid one");
    }
    call.receive_counts.push_back(static_cast<size_t>(size));
    all += call.receive_counts.back();
  }
  const std::vector<std::byte> own = std::move(round.out);
  call.send_counts.assign(ranks, own.size());
  round.out.clear();
  round.out.reserve(ranks * own.size());
  for (size_t rank = 0; rank < ranks; ++rank) {
    round.out.insert(round.out.end(), own.begin(), own.end());
  }
  round.in.resize(all);
  sent_bytes_ += (ranks - 1) * own.size();
  call.input = round.out.data();
  call.output = round.in.data();
  return Start(round, std::move(call));
}

absl::Status CompressedAllReduce::Finish(Round& round, std::span<float> values) {
  SYNCLINE_RETURN_IF_ERROR(Wait(round));
  const std::byte* bytes = round.in.data();
  for (int rank = 0; rank < options_.group->ranks(); ++rank) {
    const auto size = static_cast<size_t>(round.sizes_in[static_cast<size_t>(rank)]);
    const BlockRange range = BlockOf(round, rank);
    const std::span<float> to = values.subspan(range.first_element, range.elements);
    SYNCLINE_RETURN_IF_ERROR(
        Decode({bytes, size}, {.range = range, .step = step_, .epoch = 1}, rank,
               [&](const TileView& tile) {
                 return tile.codec->Decode(tile.bytes,
                                           to.subspan(tile.first_element, tile.elements));
               }));
    bytes += size;
  }
  round = {};
  return absl::OkStatus();
}

absl::Status CompressedAllReduce::Start(Round& round, Call call) {
  call.timeout = options_.timeout;
  // There is nothing else to do meanwhile. The waiting thread does the work, and no other
  // thread wakes up.
  if (rounds_.size() == 1) return options_.group->Run(std::move(call));
  SYNCLINE_ASSIGN_OR_RETURN(round.handle, options_.group->Start(std::move(call)));
  return absl::OkStatus();
}

absl::Status CompressedAllReduce::Wait(Round& round) {
  if (round.handle == nullptr) return absl::OkStatus();
  // The group ends the operation at its own deadline.
  return options_.group->Wait(round.handle, absl::InfiniteDuration());
}

int64_t CompressedAllReduce::Digest(const Round& round) const {
  return static_cast<int64_t>(
      JobSeed(absl::StrCat(options_.codec, " ", options_.elements, " ", options_.seed,
                           " ", step_, " ", round.first)));
}

void CompressedAllReduce::Encode(const Transfer& given, GradientMemory& memory,
                                 const Block& block, std::vector<std::byte>& out) {
  if (block.values.empty()) return;
  const Transfer& transfer = given.CompressesAt(step_) ? given : dense_;
  BlockWriter writer({.range = block.range, .step = step_, .epoch = block.epoch},
                     Checksum::kHeaderOnly, room_.owner());
  for (uint32_t tile = 0; tile < TilesOf(block.values.size()); ++tile) {
    const uint64_t first = uint64_t{tile} * kTileElements;
    memory.EncodeTile(
        transfer,
        {.gradient = block.values.subspan(first, TileElements(block.values.size(), tile)),
         .context = {.seed = block.seed,
                     .step = step_,
                     .first_element = block.kept_at + first,
                     .threshold = block.threshold}},
        writer, workspace_);
  }
  for (const Slice& slice : writer.Finish()) {
    out.insert(out.end(), slice.data, slice.data + slice.size);
  }
}

absl::Status CompressedAllReduce::Decode(
    ByteView bytes, const BlockLabel& label, int rank,
    absl::FunctionRef<absl::Status(const TileView&)> take) const {
  if (label.range.elements == 0) return absl::OkStatus();
  const auto view = ParseBlock(bytes, label, transfer_.Accepted());
  if (!view.ok()) {
    absl::Status broken = absl::DataLossError(absl::StrCat(
        "rank ", rank,
        " sent a block that cannot be decoded: ", std::string(view.status().message())));
    SetFailedRank(broken, rank);
    return broken;
  }
  for (const TileView& tile : view->tiles) SYNCLINE_RETURN_IF_ERROR(take(tile));
  return absl::OkStatus();
}

}  // namespace syncline::collective
