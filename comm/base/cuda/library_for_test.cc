// A library that contains the probe, like libsyncline.so, to test where it looks.
#include <string>

#include "comm/base/cuda/probe.h"

// Returns the path that it tried. Valid until the next call.
extern "C" const char* SynclineTestProbedPath() {
  static std::string path;
  path = syncline::ProbeCuda().path;
  return path.c_str();
}
