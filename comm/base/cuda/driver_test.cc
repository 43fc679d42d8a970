#include "comm/base/cuda/driver.h"

#include <gmock/gmock.h>

#include <cstdlib>

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(CudaDriver, CountsDevicesWithoutARuntime) {
  const CudaDriver driver = ProbeCudaDriverLibrary(SYNCLINE_TEST_FAKE_DRIVER);
  EXPECT_EQ(driver.device_count, 3);
  EXPECT_EQ(driver.version, 12040);
  EXPECT_EQ(driver.message, "driver for CUDA 12.4, 3 device(s)");
}

TEST(CudaDriver, SaysWhyItHasNoDevices) {
  setenv("SYNCLINE_FAKE_CUINIT", "100", 1);
  const CudaDriver none = ProbeCudaDriverLibrary(SYNCLINE_TEST_FAKE_DRIVER);
  setenv("SYNCLINE_FAKE_CUINIT", "803", 1);
  const CudaDriver broken = ProbeCudaDriverLibrary(SYNCLINE_TEST_FAKE_DRIVER);
  unsetenv("SYNCLINE_FAKE_CUINIT");
  EXPECT_EQ(none.device_count, 0);
  EXPECT_THAT(none.message, HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_EQ(broken.device_count, 0);
  EXPECT_EQ(broken.message,
            "driver for CUDA 12.4 does not start: error 803; see nvidia-smi");
}

TEST(CudaDriver, IsNoneWhereThereIsNoLibraryOrAnother) {
  const CudaDriver none = ProbeCudaDriverLibrary("libcuda_that_is_not_there.so.1");
  EXPECT_EQ(none.device_count, 0);
  EXPECT_THAT(none.message, HasSubstr("no NVIDIA driver: "));
  const CudaDriver other = ProbeCudaDriverLibrary(SYNCLINE_TEST_FOREIGN_LIBRARY);
  EXPECT_EQ(other.device_count, 0);
  EXPECT_THAT(other.message, HasSubstr("is not an NVIDIA driver"));
}

TEST(CudaDriver, AlwaysHasAMessage) {
  EXPECT_THAT(ProbeCudaDriver().message, Not(IsEmpty()));
}

}  // namespace
}  // namespace syncline
