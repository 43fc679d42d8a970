// A library with the probe in it, as libsyncline.so, to prove where it looks.
#include <string>

#include "comm/base/cuda/probe.h"

// Where it looked. Valid until the next call.
extern "C" const char* SynclineTestProbedPath() {
  static std::string path;
  path = syncline::ProbeCuda().path;
  return path.c_str();
}
