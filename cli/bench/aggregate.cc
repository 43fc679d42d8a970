#include "cli/bench/aggregate.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/bench/kernel.h"
#include "comm/base/check.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "nlohmann/json.hpp"
#include "server/shard/block.h"
#include "server/shard/stepper.h"

namespace syncline {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kMaxWorkers = 1024;
constexpr size_t kPoolBytes = size_t{1} << 30;

struct AggregateOptions {
  std::shared_ptr<KernelBenchOptions> kernel = std::make_shared<KernelBenchOptions>();
  uint32_t workers = 8;
  std::string dtype = "bf16";
};

struct Wire {
  TensorTransfers transfers = {};
  const Codec* push = nullptr;
  const Codec* publish = nullptr;
  const Codec* fp32 = nullptr;
};

// Returns the mean gradient as the servers compute it: in FP32, in rank order.
float MeanGradient(uint32_t workers, uint64_t element) {
  const float weight = static_cast<float>(1.0 / workers);
  float sum = 0;
  for (uint32_t rank = 0; rank < workers; ++rank) {
    sum += weight * BenchGradient(rank, element);
  }
  return sum;
}

// The blocks of one tensor, all workers' contributions to them, and the views that the
// last step published.
class BenchShard {
 public:
  static absl::StatusOr<std::unique_ptr<BenchShard>> Create(
      const AggregateOptions& options, const KernelBench& bench, const Wire& wire) {
    auto shard = std::unique_ptr<BenchShard>(new BenchShard(wire));
    const uint64_t elements = options.kernel->elements_per_thread();
    ShardOptions settings;
    settings.transfers = {wire.transfers};
    settings.seed_codec = wire.fp32;
    settings.training.optimizer = bench.settings;
    settings.tensors = {
        {.shape = TensorShape(std::array{elements / kBenchRow, kBenchRow})}};
    SYNCLINE_ASSIGN_OR_RETURN(shard->stepper_, Stepper::Create(settings, shard->pool_));
    SYNCLINE_RETURN_IF_ERROR(shard->AddBlocks(elements, options.workers));
    return shard;
  }

  void Step() {
    for (Block& block : blocks_) HoldAll(block);
    const ShardDecision decision = Decide();
    if (stepper_->StepsWhole(0)) {
      std::vector<Block*> all;
      for (Block& block : blocks_) all.push_back(&block);
      views_ = stepper_->Update(all, decision, kEpoch);
    } else {
      // A view is kept until the next one of its block. So published bytes go to memory
      // and not to the same few cache lines.
      for (size_t i = 0; i < blocks_.size(); ++i) {
        Block* const block = &blocks_[i];
        views_[i] = std::move(stepper_->Update({&block, 1}, decision, kEpoch).front());
      }
    }
    stepper_->Finish();
    for (Block& block : blocks_) block.Advance(Block::Outcome::kUpdated);
  }

  float weight(uint64_t element) const {
    const uint64_t length = blocks_[0].spec().range.elements;
    return blocks_[element / length].memory().weights[element % length];
  }

  // Fails with DataLoss if a view differs from the weights rounded by the codec.
  absl::Status CheckViews() const {
    std::vector<float> values(kBlockElements);
    // Half the distance of neighbours in BF16, which has the fewest bits of significand:
    // 8.
    const double tolerance = wire_.publish->id() == CodecId::kFp32 ? 0 : 0x1p-8;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const std::span<const float> weights = blocks_[i].memory().weights;
      const Buffer payload = Gather(views_[i]);
      SYNCLINE_ASSIGN_OR_RETURN(
          const BlockView view,
          ParseBlock(payload.view(), blocks_[i].Label(kEpoch), {wire_.publish}));
      for (const TileView& tile : view.tiles) {
        SYNCLINE_RETURN_IF_ERROR(wire_.publish->Decode(
            tile.bytes, std::span(values).subspan(tile.first_element, tile.elements)));
      }
      for (size_t j = 0; j < weights.size(); ++j) {
        if (std::abs(values[j] - weights[j]) <= tolerance * std::abs(weights[j]))
          continue;
        return absl::DataLossError(absl::StrCat(
            "weight ", j, " of block ", i, " is ", weights[j], ", but ", values[j],
            " was published: the benchmark's result is wrong; this is a bug"));
      }
    }
    return absl::OkStatus();
  }

 private:
  static constexpr uint64_t kEpoch = 1;

  explicit BenchShard(const Wire& wire) : wire_(wire) {}

  absl::Status AddBlocks(uint64_t elements, uint32_t workers) {
    const std::array sizes = {elements};
    std::vector<ShardBlock> cut;
    for (const BlockRange& range : CutIntoBlocks(sizes)) {
      cut.push_back({static_cast<uint32_t>(cut.size()), range});
    }
    SYNCLINE_RETURN_IF_ERROR(stepper_->Reserve(cut));
    for (const ShardBlock& one : cut) {
      Block& block = blocks_.emplace_back(one, stepper_->Allocate(one.range));
      const std::span<float> weights = block.memory().weights;
      for (uint32_t i = 0; i < one.range.elements; ++i) {
        weights[i] = BenchWeight(one.range.first_element + i);
      }
      for (uint32_t rank = 0; rank < workers; ++rank) Push(block, rank);
    }
    workers_ = workers;
    views_.resize(blocks_.size());
    return absl::OkStatus();
  }

  void Push(const Block& block, uint32_t rank) {
    const BlockRange& range = block.spec().range;
    std::vector<float> gradient(range.elements);
    for (uint32_t i = 0; i < range.elements; ++i) {
      gradient[i] = BenchGradient(rank, range.first_element + i);
    }
    const BlockLabel label = block.Label(kEpoch);
    const Buffer payload =
        Gather(EncodeBlock(*wire_.push, label, gradient, Checksum::kHeaderOnly, pool_));
    auto view = ParseBlock(payload.view(), label, {wire_.push});
    SYNCLINE_CHECK(view.ok());
    contributions_.push_back({.from = {.rank = rank, .samples = 1},
                              .payload = Slice::Of(payload),
                              .view = *std::move(view)});
  }

  void HoldAll(Block& block) {
    const size_t first = size_t{block.spec().block} * workers_;
    for (size_t i = 0; i < workers_; ++i) {
      block.Hold(block.version(), contributions_[first + i]);
    }
    block.SetWeights();
  }

  // Makes the coordinator's decision, if the optimizer needs statistics of the whole job.
  ShardDecision Decide() {
    const Block& front = blocks_.front();
    ShardDecision decision = {.step = front.version()};
    if (!stepper_->NeedsDecision(front.version())) return decision;
    for (const Block& block : blocks_) {
      const std::vector<double> figures = stepper_->Figures(block);
      decision.figures.resize(figures.size() - 1);
      for (size_t i = 1; i < figures.size(); ++i) decision.figures[i - 1] += figures[i];
    }
    stepper_->Prepare(decision, front);
    return decision;
  }

  const Wire wire_;
  BufferPool pool_ = BufferPool(kPoolBytes);
  std::unique_ptr<Stepper> stepper_;
  std::vector<Block> blocks_;
  uint32_t workers_ = 0;
  std::vector<Contribution> contributions_;  // block by block, in rank order
  std::vector<Payload> views_;
};

absl::StatusOr<Wire> FindWire(const AggregateOptions& options, const KernelBench& bench,
                              const CodecRegistry& codecs) {
  if (options.workers < 1 || options.workers > kMaxWorkers) {
    return WithFailure(absl::InvalidArgumentError("--workers must be in [1, 1024]"),
                       Failure::kUsage);
  }
  const auto push = ParseTransfer(options.dtype);
  if (!push.ok()) return WithFailure(push.status(), Failure::kUsage);
  SYNCLINE_ASSIGN_OR_RETURN(const Codec* fp32, codecs.Find(CodecId::kFp32));
  SYNCLINE_ASSIGN_OR_RETURN(const Transfer publish,
                            ParseTransfer(std::string_view(bench.out->name())));
  return Wire{.transfers = {.push = *push, .publish = publish},
              .push = push->codec.get(),
              .publish = publish.codec.get(),
              .fp32 = fp32};
}

// Contributions and published bytes count once; master weights and state count twice,
// since they are read and written.
double FloorBytes(const AggregateOptions& options, const KernelBench& bench,
                  const Wire& wire) {
  double state = 0;
  const uint64_t elements = options.kernel->elements_per_thread();
  for (const StateSlot& slot : bench.optimizer->slots()) {
    const StateType type = EffectiveType(bench.state, slot.kind, elements);
    state +=
        static_cast<double>(StateBytes(type, elements)) / static_cast<double>(elements);
  }
  return static_cast<double>(options.workers * wire.push->MaxEncodedBytes(1)) +
         2 * (sizeof(float) + state) +
         static_cast<double>(wire.publish->MaxEncodedBytes(1));
}

absl::StatusOr<Json> Measure(const AggregateOptions& options) {
  const KernelBenchOptions& kernel = *options.kernel;
  const CodecRegistry codecs = CodecRegistry::Builtin();
  SYNCLINE_ASSIGN_OR_RETURN(const KernelBench bench, PrepareKernelBench(kernel, codecs));
  SYNCLINE_ASSIGN_OR_RETURN(const Wire wire, FindWire(options, bench, codecs));
  const double bytes = FloorBytes(options, bench, wire);
  const auto params = static_cast<double>(kernel.elements());
  SYNCLINE_RETURN_IF_ERROR(CheckMemory(kernel, bytes * params));
  std::vector<std::unique_ptr<BenchShard>> shards(kernel.threads);
  for (auto& shard : shards) {
    SYNCLINE_ASSIGN_OR_RETURN(shard, BenchShard::Create(options, bench, wire));
  }
  const KernelRounds rounds =
      MeasureRounds(kernel, [&](int thread) { shards[thread]->Step(); });
  Json report = KernelReport(kernel, rounds, bytes);
  const double floor_seconds = bytes * params / rounds.copy_gbs / 1e9;
  report["bench"] = "aggregate";
  report["settings"]["workers"] = options.workers;
  report["settings"]["dtype"] = options.dtype;
  report["floor_bytes_per_param"] = bytes;
  report["floor_seconds"] = floor_seconds;
  report["over_floor"] = report["seconds"]["median"].get<double>() / floor_seconds;
  for (const auto& shard : shards) {
    SYNCLINE_ASSIGN_OR_RETURN(
        report["verified"],
        CheckResult(
            bench,
            {.elements = kernel.elements_per_thread(),
             .steps = kernel.steps(),
             .gradient = [&](uint64_t i) { return MeanGradient(options.workers, i); },
             .weight = [&](uint64_t i) { return shard->weight(i); }}));
    SYNCLINE_RETURN_IF_ERROR(shard->CheckViews());
  }
  return report;
}

void Print(const Json& report) {
  const Json& settings = report["settings"];
  std::printf("%u %s contributions of %.4g million parameters, %s, %s out, %d threads\n",
              settings["workers"].get<unsigned>(),
              settings["dtype"].get<std::string>().c_str(),
              settings["params"].get<double>() / 1e6,
              settings["optimizer"].get<std::string>().c_str(),
              settings["out"].get<std::string>().c_str(), settings["threads"].get<int>());
  std::printf("  per parameter  %.3f ns, at least %.4g bytes\n",
              report["ns_per_param"].get<double>(),
              report["floor_bytes_per_param"].get<double>());
  std::printf("  over floor     %.2f x the time that a copy at %.2f GB/s would take\n",
              report["over_floor"].get<double>(), report["copy_gbs"].get<double>());
}

absl::StatusOr<int> BenchAggregate(const AggregateOptions& options) {
  SYNCLINE_ASSIGN_OR_RETURN(const Json report, Measure(options));
  if (options.kernel->prints_json) {
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    Print(report);
  }
  return kExitDone;
}

}  // namespace

void AddBenchAggregate(CLI::App& bench, Command* selected) {
  auto options = std::make_shared<AggregateOptions>();
  options->kernel->out = "bf16";
  options->kernel->params = 16'000'000;
  CLI::App* app = bench.add_subcommand(
      "aggregate", "Time of a shard's step: sum of contributions, optimizer, encoding");
  app->add_option("--workers", options->workers, "Contributions to each step")
      ->capture_default_str();
  app->add_option("--dtype", options->dtype, "Codec of the contributions")
      ->capture_default_str();
  app->add_option("--optimizer", options->kernel->optimizer, "Optimizer")
      ->capture_default_str();
  AddKernelFlags(*app, options->kernel);
  app->callback([options, selected] {
    *selected = [options] { return BenchAggregate(*options); };
  });
}

}  // namespace syncline
