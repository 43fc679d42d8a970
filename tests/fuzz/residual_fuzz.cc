// Fuzzes files of residuals.
//
//   offset  bytes
//   0       1      1: correct the CRC before reading
//   1       rest   the file
#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "comm/base/check.h"
#include "comm/base/crc32c.h"
#include "comm/base/temp_directory.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"
#include "worker/client/residual_file.h"

namespace syncline::fuzz {
namespace {

constexpr size_t kCrcBytes = 4;

template <typename Values>
void PutAll(Bytes& bytes, const Values& values) {
  const uint64_t count = values.size();
  Append(bytes, std::as_bytes(std::span(&count, 1)));
  Append(bytes, std::as_bytes(std::span(values)));
}

// Writes the format of worker/client/residual_file.h a second time.
Bytes Written(const std::vector<SavedResidual>& parts) {
  Bytes bytes;
  Append(bytes, std::as_bytes(std::span("SNCYRES1", 8)));
  const uint64_t count = parts.size();
  Append(bytes, std::as_bytes(std::span(&count, 1)));
  for (const SavedResidual& part : parts) {
    PutAll(bytes, part.tensor);
    PutAll(bytes, part.codec);
    PutAll(bytes, part.residual);
    PutAll(bytes, part.velocity);
    PutAll(bytes, part.units);
  }
  Append(bytes, Crc32c(bytes), kCrcBytes);
  return bytes;
}

}  // namespace

std::vector<Bytes> Seeds() {
  const TempDirectory directory;
  const std::string path = directory.File("residuals");
  const std::vector<float> residual = SomeValues(20, 1);
  const std::vector<float> velocity = SomeValues(20, 2);
  const std::vector<GradientUnits> units = {{.loss_scale = 8, .learning_rate = 0.5f}};
  std::vector<ResidualPart> parts;
  std::vector<Bytes> seeds;
  for (const char* tensor : {"", "fc1", "a tensor with a long name"}) {
    SYNCLINE_CHECK(WriteResiduals(path, parts).ok());
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    for (const uint32_t repairs : {0u, 1u}) {
      Bytes& seed = seeds.emplace_back();
      Append(seed, repairs, 1);
      Append(seed, std::as_bytes(std::span(text)));
    }
    parts.push_back(
        {.tensor = tensor,
         .codec = "dgc",
         .kept = {.residual = residual, .velocity = velocity, .units = units}});
  }
  return seeds;
}

}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace syncline;  // NOLINT(google-build-using-namespace): C has none
  fuzz::Reader input(std::as_bytes(std::span(data, size)));
  const bool repairs = (input.Take(1) & 1) != 0;
  fuzz::Bytes bytes(input.rest().begin(), input.rest().end());
  if (repairs && bytes.size() >= fuzz::kCrcBytes) {
    bytes.resize(bytes.size() - fuzz::kCrcBytes);
    fuzz::Append(bytes, Crc32c(bytes), fuzz::kCrcBytes);
  }
  const fuzz::MemoryFile file(bytes);
  const auto parts = ReadResiduals(file.path());
  if (parts.ok()) {
    SYNCLINE_CHECK(fuzz::Written(*parts) == bytes);
  } else {
    SYNCLINE_CHECK(absl::IsDataLoss(parts.status()));
  }
  return 0;
}
