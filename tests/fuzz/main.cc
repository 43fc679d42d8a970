// Runs a fuzzer without libFuzzer: its seeds, the named files, and random mutations of
// both, which are the same for the same --seed.
//
//   fuzz_codec --mutations 100000 --seed 7
//   fuzz_codec --mutations 0 crash-4711          # repeats a crash
//   fuzz_codec --write-seeds corpus/             # for libFuzzer
//
// The inputs run in a child process. If it dies, its last input is written to
// crash-NUMBER, and the exit code is 1.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "comm/base/check.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutate.h"

namespace syncline::fuzz {
namespace {

struct Options {
  uint64_t mutations = 10'000;
  uint32_t seed = 1;
  std::string write_seeds = {};
  std::vector<std::string> paths = {};
};

Bytes ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

bool WriteFile(const std::filesystem::path& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  return file.good();
}

int WriteSeeds(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const std::vector<Bytes> seeds = Seeds();
  for (size_t i = 0; i < seeds.size(); ++i) {
    if (!WriteFile(folder / ("seed-" + std::to_string(i)), seeds[i])) return 1;
  }
  std::printf("%zu seeds in %s\n", seeds.size(), folder.c_str());
  return 0;
}

// All inputs, by number: first the corpus, then mutations of it.
class Inputs {
 public:
  explicit Inputs(const Options& options) : options_(options), corpus_(Seeds()) {
    for (const std::filesystem::path path : options.paths) {
      if (!std::filesystem::is_directory(path)) {
        corpus_.push_back(ReadFile(path));
        continue;
      }
      for (const auto& entry : std::filesystem::directory_iterator(path)) {
        corpus_.push_back(ReadFile(entry.path()));
      }
    }
  }

  uint64_t count() const { return corpus_.size() + options_.mutations; }

  Bytes At(uint64_t number) const {
    if (number < corpus_.size()) return corpus_[number];
    std::seed_seq seed = {uint64_t{options_.seed}, number};
    std::mt19937 random(seed);
    return Mutated(corpus_, random);
  }

 private:
  const Options& options_;
  std::vector<Bytes> corpus_;
};

int Run(const Options& options) {
  const Inputs inputs(options);
  // The page is shared with the child, so that the child's last number survives it.
  void* const page = mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  SYNCLINE_CHECK(page != MAP_FAILED);
  auto* const number = new (page) std::atomic<uint64_t>(0);
  const pid_t child = fork();
  SYNCLINE_CHECK(child >= 0);
  if (child == 0) {
    for (uint64_t i = 0; i < inputs.count(); ++i) {
      number->store(i);
      const Bytes input = inputs.At(i);
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()),
                             input.size());
    }
    number->store(inputs.count());
    return 0;
  }
  int status = 0;
  SYNCLINE_CHECK(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    std::printf("%llu inputs, none crashed\n",
                static_cast<unsigned long long>(inputs.count()));
    return 0;
  }
  if (*number == inputs.count()) {
    std::printf("all inputs ran, but the process failed at its end\n");
    return 1;
  }
  const std::string file = "crash-" + std::to_string(number->load());
  WriteFile(file, inputs.At(number->load()));
  std::printf("input %llu crashed; it is in %s\n",
              static_cast<unsigned long long>(number->load()), file.c_str());
  return 1;
}

}  // namespace
}  // namespace syncline::fuzz

int main(int argc, char** argv) {
  CLI::App app("Runs inputs and random mutations of them through a decoder.");
  syncline::fuzz::Options options;
  app.add_option("--mutations", options.mutations, "how many")->capture_default_str();
  app.add_option("--seed", options.seed, "of the mutations")->capture_default_str();
  app.add_option("--write-seeds", options.write_seeds, "only write the seeds there");
  app.add_option("paths", options.paths, "more inputs: files, or folders of them");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!options.write_seeds.empty())
    return syncline::fuzz::WriteSeeds(options.write_seeds);
  return syncline::fuzz::Run(options);
}
