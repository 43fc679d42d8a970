// Measures the server's kernels on one thread, each beside the machine's own copy
// bandwidth, and checks what they compute while it measures. Prints one JSON object.
//
//   kernels_bench
//
// "memory" rows stream through arrays far larger than the caches; "fused" rows do what a
// shard does for one step: per strip, sum two BF16 contributions, update, encode BF16.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/base/check.h"
#include "comm/base/crc32c.h"
#include "comm/base/machine.h"
#include "comm/codec/codec.h"
#include "server/optimizer/optimizer.h"
#include "server/optimizer/reduce.h"

namespace syncline {
namespace {

constexpr size_t kElements = size_t{16} << 20;
constexpr size_t kStrip = 4096;
constexpr int kRounds = 7;

class Bench {
 public:
  Bench()
      : gradient_(kElements, 0.5f),
        master_(kElements, 1.0f),
        mean_(kElements, 0.0f),
        variance_(kElements, 0.0f),
        wire_(kElements * 4),
        machine_(MeasureMachine()) {}

  void Run() {
    Adamw();
    Sgd();
    for (const char* name : {"fp32", "bf16"}) CodecKernels(**codecs_.FindByName(name));
    Measure("sum_of_squares", 4,
            [&] { SYNCLINE_CHECK(SumOfSquares(gradient_) == 0.25 * kElements); });
    Measure("crc32c", 4,
            [&] { SYNCLINE_CHECK(Crc32c(ByteView(wire_).first(kElements * 4)) != 0); });
    FusedStep();
    const nlohmann::ordered_json report = {
        {"machine",
         {{"cores", machine_.cores},
          {"isa", machine_.isa},
          {"copy_gbs", machine_.copy_gbs}}},
        {"settings", {{"elements", kElements}, {"strip", kStrip}, {"rounds", kRounds}}},
        {"kernels", rows_}};
    std::puts(report.dump(2).c_str());
  }

 private:
  // Runs `pass` over all elements several times; `bytes` is what it moves per element.
  void Measure(const std::string& name, double bytes, const std::function<void()>& pass) {
    std::vector<double> seconds;
    for (int round = 0; round < kRounds; ++round) {
      const auto start = std::chrono::steady_clock::now();
      pass();
      const auto end = std::chrono::steady_clock::now();
      seconds.push_back(std::chrono::duration<double>(end - start).count());
    }
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2];
    const double gbs = bytes * kElements / median / 1e9;
    rows_.push_back({{"kernel", name},
                     {"bytes_per_element", bytes},
                     {"ns_per_element", median / kElements * 1e9},
                     {"best_ns_per_element", seconds.front() / kElements * 1e9},
                     {"gbs", gbs},
                     {"of_copy", gbs / machine_.copy_gbs}});
  }

  TileSpans Strip(size_t first) {
    return {.gradient = std::span(gradient_).subspan(first, kStrip),
            .master = std::span(master_).subspan(first, kStrip),
            .state = {mean_.data() + first, variance_.data() + first}};
  }

  void ApplyAll(const Optimizer& optimizer, const StepScalars& scalars) {
    for (size_t first = 0; first < kElements; first += kStrip) {
      optimizer.Apply(scalars, Strip(first));
    }
  }

  void ResetState() {
    std::fill(master_.begin(), master_.end(), 1.0f);
    std::fill(mean_.begin(), mean_.end(), 0.0f);
    std::fill(variance_.begin(), variance_.end(), 0.0f);
  }

  // With a constant gradient AdamW moves every weight by the learning rate at each step.
  void Adamw() {
    ResetState();
    const OptimizerSettings settings = {.name = "adamw", .learning_rate = 1e-3};
    const auto optimizer = *MakeOptimizer(settings);
    uint64_t step = 0;
    Measure("adamw", 28, [&] { ApplyAll(*optimizer, ScalarsFor(settings, {}, ++step)); });
    for (size_t i = 0; i < kElements; i += 4099) {
      SYNCLINE_CHECK(std::abs(master_[i] - (1.0f - 1e-3f * kRounds)) < 1e-5f);
    }
  }

  void Sgd() {
    ResetState();
    const OptimizerSettings settings = {
        .name = "sgd", .learning_rate = 1e-3, .momentum = 0.5};
    const auto optimizer = *MakeOptimizer(settings);
    uint64_t step = 0;
    Measure("sgd_momentum", 20,
            [&] { ApplyAll(*optimizer, ScalarsFor(settings, {}, ++step)); });
    SYNCLINE_CHECK(std::abs(mean_[kElements - 1] - 1.0f) < 0.01f);
  }

  void CodecKernels(const Codec& codec) {
    const size_t width = codec.MaxEncodedBytes(1);
    const std::string name(codec.name());
    std::fill(gradient_.begin(), gradient_.end(), 0.5f);
    ForEachStrip(width, name + "_encode", 4.0 + static_cast<double>(width),
                 [&](std::span<float> values, MutableByteView bytes) {
                   codec.Encode(values, bytes);
                 });
    std::fill(master_.begin(), master_.end(), 0.0f);
    MeasureDecodeAdd(codec);
    SYNCLINE_CHECK(master_[kElements - 1] == 0.5f * kRounds);
  }

  void ForEachStrip(size_t width, const std::string& name, double bytes,
                    const std::function<void(std::span<float>, MutableByteView)>& work) {
    Measure(name, bytes, [&] {
      for (size_t first = 0; first < kElements; first += kStrip) {
        work(std::span(gradient_).subspan(first, kStrip),
             MutableByteView(wire_).subspan(first * width, kStrip * width));
      }
    });
  }

  void MeasureDecodeAdd(const Codec& codec) {
    const size_t width = codec.MaxEncodedBytes(1);
    Measure(
        std::string(codec.name()) + "_decode_add", 8.0 + static_cast<double>(width), [&] {
          for (size_t first = 0; first < kElements; first += kStrip) {
            const ByteView bytes = ByteView(wire_).subspan(first * width, kStrip * width);
            const auto strip = std::span(master_).subspan(first, kStrip);
            SYNCLINE_CHECK(codec.DecodeAdd(bytes, 1.0f, strip).ok());
          }
        });
  }

  // Two contributions in (2 x 2 bytes), weights and state read and written (24), BF16 out
  // (2).
  void FusedStep() {
    ResetState();
    const Codec& codec = **codecs_.FindByName("bf16");
    const OptimizerSettings settings = {.name = "adamw", .learning_rate = 1e-3};
    const auto optimizer = *MakeOptimizer(settings);
    std::fill(gradient_.begin(), gradient_.end(), 0.25f);
    SYNCLINE_CHECK(codec.Encode(std::span(gradient_).first(kElements),
                                MutableByteView(wire_).first(kElements * 2)) ==
                   kElements * 2);
    const ByteView second = ByteView(wire_).subspan(kElements * 2);
    std::copy_n(wire_.begin(), kElements * 2, wire_.begin() + kElements * 2);
    std::vector<std::byte> out(kElements * 2);
    std::vector<float> sum(kStrip);
    uint64_t step = 0;
    Measure("fused_2x_bf16_adamw_bf16", 30, [&] {
      StepScalars scalars = ScalarsFor(settings, {}, ++step);
      scalars.gradient_scale = 0.5f;
      for (size_t first = 0; first < kElements; first += kStrip) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (const ByteView contribution : {ByteView(wire_), second}) {
          SYNCLINE_CHECK(
              codec.DecodeAdd(contribution.subspan(first * 2, kStrip * 2), 1.0f, sum)
                  .ok());
        }
        TileSpans strip = Strip(first);
        strip.gradient = sum;
        optimizer->Apply(scalars, strip);
        codec.Encode(strip.master, MutableByteView(out).subspan(first * 2, kStrip * 2));
      }
    });
    SYNCLINE_CHECK(std::abs(master_[kElements - 1] - (1.0f - 1e-3f * kRounds)) < 1e-5f);
  }

  const CodecRegistry codecs_ = CodecRegistry::Builtin();
  std::vector<float> gradient_;
  std::vector<float> master_;
  std::vector<float> mean_;
  std::vector<float> variance_;
  std::vector<std::byte> wire_;
  const MachineInfo machine_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace
}  // namespace syncline

int main() { syncline::Bench().Run(); }
