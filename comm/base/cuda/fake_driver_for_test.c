/* libcuda.so.1 of a machine with three GPUs, as far as the probe calls it. SYNCLINE_FAKE_CUINIT is what cuInit returns. */
#include <stdlib.h>

static int initialised = 0;

int cuInit(unsigned flags) {
  const char* error = getenv("SYNCLINE_FAKE_CUINIT");
  if (flags != 0) return 1;
  if (error != NULL) return atoi(error);
  initialised = 1;
  return 0;
}
int cuDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 3;
  return initialised ? 0 : 3;
}
