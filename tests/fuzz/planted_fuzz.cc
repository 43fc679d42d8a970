// A fuzzer with a bug, so that a test can check that main.cc finds it.
#include "comm/base/check.h"
#include "tests/fuzz/fuzz.h"

namespace syncline::fuzz {

std::vector<Bytes> Seeds() { return {Bytes(64)}; }

}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  SYNCLINE_CHECK(size != 64 || data[3] != 0xff);
  return 0;
}
