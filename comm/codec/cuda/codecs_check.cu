// Compares the codecs on a device with the same source on the emulated GPU, bit for bit.
// It covers what ctest cannot test without a device: the code that nvcc generates, the
// order of memory, and blocks that really run in parallel. codecs_test.cc compares the
// emulated GPU with the codecs of the CPU.
//
//   cuda_codecs_check [quick]       quick: a few seconds on the emulated GPU
//
// Exits with 77 (skipped) if there is no device, and with 1 if one does not work.
#include <memory>

#include "comm/codec/cuda/check_case.cuh"
#include "comm/codec/cuda/device_present.h"

namespace syncline {
namespace {

constexpr SynclineCudaCodec kCodecs[] = {
    {.id = 5, .block_log2 = 8},
    {.id = 5},
    {.id = 5, .block_log2 = 15},
    {.id = 5, .block_log2 = 16},
    {.id = 6, .block_log2 = 10},
    {.id = 6, .block_log2 = 14},
    {.id = 6, .block_log2 = 10, .stochastic = 1},
    {.id = 16},
    {.id = 16, .values = 2, .ratio = 0.1},
    {.id = 16, .ratio = 1},
};
constexpr SynclineCudaCodec kStochastic = {.id = 6, .block_log2 = 10, .stochastic = 1};
constexpr Values kAllValues[] = {Values::kMixed, Values::kSparse, Values::kDenormal,
                                 Values::kHuge, Values::kNan};

struct Checker {
  cudaStream_t stream = nullptr;
  bool quick = false;

  bool Once(const CheckCase& run) const {
    const CheckInput input = MakeInput(run);
    DeviceRun device(run, input);
    Must(device.Enqueue(stream), "encode and decode");
    return Same(run, device.Read(), OnEmulator(run, input));
  }
};

bool Sizes(const Checker& checker) {
  bool good = true;
  for (const SynclineCudaCodec& codec : kCodecs) {
    for (const uint64_t n : {1u, 31u, 257u, 8191u, 8193u, 65536u, 65537u, 1234567u}) {
      if (checker.quick && n > 8193) continue;
      const auto dtype = static_cast<DType>(1 + n % 3);
      good = checker.Once({.codec = codec, .dtype = dtype, .elements = n}) && good;
    }
  }
  return good;
}

bool KindsOfValues(const Checker& checker) {
  const uint64_t n = checker.quick ? 9'000 : 3 * kTileElements + 77;
  bool good = true;
  for (const SynclineCudaCodec& codec : kCodecs) {
    for (const Values values : kAllValues) {
      for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
        if (checker.quick && dtype == DType::kF16) continue;
        good = checker.Once(
                   {.codec = codec, .dtype = dtype, .elements = n, .values = values}) &&
               good;
      }
      good = checker.Once({.codec = codec,
                           .elements = 9'000,
                           .values = values,
                           .has_residual = false}) &&
             good;
    }
  }
  return good;
}

// The keys of random bits change inside this window.
bool WindowAcross32Bits(const Checker& checker) {
  const uint64_t window = uint64_t{1} << 32;
  return checker.Once({.codec = kStochastic,
                       .elements = 2 * kTileElements + 50,
                       .first_element = window - kTileElements});
}

bool MoreBlocksThanRunAtOnce(const Checker& checker) {
  bool good = true;
  for (const uint32_t id : {5u, 6u, 16u}) {
    if (checker.quick) continue;
    good = checker.Once({.codec = {.id = id}, .elements = 9'000'001}) && good;
  }
  return good;
}

struct Graph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;

  Graph() = default;
  ~Graph() {
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
};

// Each replay is a different step: other random bits, another scale, another rate.
bool Replays(const Checker& checker) {
  constexpr uint64_t kSteps = 3;
  bool good = true;
  for (const SynclineCudaCodec& codec : kCodecs) {
    const CheckCase run = {.codec = codec, .elements = checker.quick ? 5000u : 200'000u};
    const CheckInput input = MakeInput(run);
    DeviceRun device(run, input);
    device.KeepStepOnDevice();
    Graph graph;
    device.SetStep(StepNumber(0), checker.stream);
    Must(cudaStreamBeginCapture(checker.stream, cudaStreamCaptureModeGlobal), "capture");
    Must(device.Enqueue(checker.stream), "captured encode and decode");
    Must(cudaStreamEndCapture(checker.stream, &graph.graph), "end of capture");
    Must(cudaGraphInstantiate(&graph.executable, graph.graph, 0), "graph");
    for (uint64_t step = 0; step < kSteps; ++step) {
      device.SetStep(StepNumber(step), checker.stream);
      Must(cudaGraphLaunch(graph.executable, checker.stream), "graph launch");
      Must(cudaStreamSynchronize(checker.stream), "kernels");
    }
    good = Same(run, device.Read(), OnEmulator(run, input, kSteps)) && good;
  }
  return good;
}

// A call must not report an error of other code, and must not leave its own for the next
// call.
bool Errors(const Checker& checker) {
  const CheckCase run = {.codec = {.id = 5}, .elements = 70'000};
  const CheckInput input = MakeInput(run);
  DeviceRun device(run, input);
  cudaGetLastError();
  device.SetDevice(9999);
  if (device.Enqueue(checker.stream) == cudaSuccess) {
    std::printf("device 9999 was taken\n");
    return false;
  }
  if (cudaGetLastError() != cudaSuccess) {
    std::printf("an error was left for the next call\n");
    return false;
  }
  device.SetDevice(-1);
  static_cast<void>(cudaSetDevice(9999));
  const int error = device.Enqueue(checker.stream);
  cudaGetLastError();
  if (error != cudaSuccess) {
    std::printf("another call's error was taken for its own\n");
    return false;
  }
  return Same(run, device.Read(), OnEmulator(run, input));
}

// Runs four streams at once, each with its own arrays and workspace.
bool Streams(const Checker& checker) {
  constexpr SynclineCudaCodec kOfStream[] = {
      {.id = 5, .block_log2 = 15}, kStochastic, {.id = 16}, {.id = 5}};
  const uint64_t rounds = checker.quick ? 1 : 1000;
  struct Lane {
    CheckCase run;
    cudaStream_t stream = nullptr;
    CheckOutput expected;
  };
  std::vector<Lane> lanes(std::size(kOfStream));
  for (size_t i = 0; i < lanes.size(); ++i) {
    lanes[i].run = {.codec = kOfStream[i],
                    .elements = checker.quick ? 9'000 : 300'000 + 1000 * i,
                    .seed = kCheckSeed + i};
    lanes[i].expected = OnEmulator(lanes[i].run, MakeInput(lanes[i].run));
    Must(cudaStreamCreate(&lanes[i].stream), "stream");
  }
  bool good = true;
  for (uint64_t round = 0; round < rounds && good; ++round) {
    std::vector<std::unique_ptr<DeviceRun>> runs;
    for (const Lane& lane : lanes) {
      runs.push_back(std::make_unique<DeviceRun>(lane.run, MakeInput(lane.run)));
    }
    Must(cudaDeviceSynchronize(), "copies");
    for (size_t i = 0; i < lanes.size(); ++i) {
      Must(runs[i]->Enqueue(lanes[i].stream), "encode and decode");
    }
    for (size_t i = 0; i < lanes.size(); ++i) {
      good = Same(lanes[i].run, runs[i]->Read(), lanes[i].expected) && good;
    }
  }
  for (const Lane& lane : lanes) cudaStreamDestroy(lane.stream);
  return good;
}

struct Group {
  const char* name;
  bool (*check)(const Checker& checker);
};
constexpr Group kGroups[] = {{"sizes", Sizes},
                             {"kinds of values", KindsOfValues},
                             {"random bits across 2^32", WindowAcross32Bits},
                             {"more blocks than run at once", MoreBlocksThanRunAtOnce},
                             {"a graph replayed", Replays},
                             {"errors", Errors},
                             {"four streams", Streams}};

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  using namespace syncline;
  gpu::RequireDevice();
  const bool quick = argc > 1 && std::strcmp(argv[1], "quick") == 0;
  Checker checker = {.quick = quick};
  Must(cudaStreamCreate(&checker.stream), "stream");
  bool good = true;
  for (const Group& group : kGroups) {
    const bool passed = group.check(checker);
    std::printf("%-30s %s\n", group.name, passed ? "ok" : "FAILED");
    good = passed && good;
  }
  cudaStreamDestroy(checker.stream);
  std::printf("%s (seed %llu)\n", good ? "ok" : "FAILED",
              static_cast<unsigned long long>(kCheckSeed));
  return good ? 0 : 1;
}
