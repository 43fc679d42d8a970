#include "comm/base/cuda/probe.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(CudaProbe, SaysWhereItLookedWhenThereIsNoModule) {
  const CudaProbe probe = ProbeCudaModule("/nonexistent/libsyncline_cuda.so");
  EXPECT_FALSE(probe.loaded);
  EXPECT_EQ(probe.device_count, 0);
  EXPECT_THAT(probe.message, HasSubstr("/nonexistent/libsyncline_cuda.so"));
}

TEST(CudaProbe, RefusesAFileThatIsNoLibrary) {
  const std::string path = ::testing::TempDir() + "/not_a_module.so";
  std::ofstream(path) << "no ELF";
  const CudaProbe probe = ProbeCudaModule(path);
  std::remove(path.c_str());
  EXPECT_FALSE(probe.loaded);
  EXPECT_THAT(probe.message, HasSubstr("cannot open"));
}

TEST(CudaProbe, RefusesALibraryThatIsNoModule) {
  const CudaProbe probe = ProbeCudaModule(SYNCLINE_TEST_FOREIGN_LIBRARY);
  EXPECT_FALSE(probe.loaded);
  EXPECT_THAT(probe.message, HasSubstr("no Syncline CUDA module"));
}

TEST(CudaProbe, RefusesAModuleOfAnotherInterface) {
  const CudaProbe probe = ProbeCudaModule(SYNCLINE_TEST_OLD_MODULE);
  EXPECT_FALSE(probe.loaded);
  EXPECT_THAT(probe.message, HasSubstr("install both from one build"));
}

TEST(CudaProbe, SaysThatTheDriverIsTooOld) {
  const CudaProbe probe = ProbeCudaModule(SYNCLINE_TEST_FAKE_MODULE);
  EXPECT_TRUE(probe.loaded) << probe.message;
  EXPECT_EQ(probe.device_count, 0);
  EXPECT_THAT(probe.message, HasSubstr("built with CUDA 13.0, and this machine's driver "
                                       "knows 12.4: update the driver"));
  EXPECT_THAT(probe.message, HasSubstr("580"));
}

TEST(CudaProbe, TakesThePathFromTheEnvironment) {
  setenv("SYNCLINE_CUDA_MODULE", "/nonexistent/elsewhere.so", 1);
  EXPECT_EQ(ProbeCuda().path, "/nonexistent/elsewhere.so");
  unsetenv("SYNCLINE_CUDA_MODULE");
  EXPECT_THAT(ProbeCuda().path, HasSubstr("libsyncline_cuda.so"));
}

#ifdef SYNCLINE_TEST_MODULE
TEST(CudaProbe, LoadsTheModuleAndCountsDevices) {
  const CudaProbe probe = ProbeCudaModule(SYNCLINE_TEST_MODULE);
  EXPECT_TRUE(probe.compiled);
  EXPECT_TRUE(probe.loaded) << probe.message;
  EXPECT_THAT(probe.architectures, HasSubstr("sm_90"));
  EXPECT_GE(probe.runtime_version, 12000);
  if (probe.device_count == 0) {
    EXPECT_THAT(probe.message, HasSubstr("no device: "));
    EXPECT_THAT(probe.message, Not(testing::EndsWith("no device: ")));
  }
}
#else
TEST(CudaProbe, SaysThatThisBuildHasNoCuda) {
  const CudaProbe probe = ProbeCudaModule("/nonexistent/libsyncline_cuda.so");
  EXPECT_FALSE(probe.compiled);
  EXPECT_THAT(probe.message, HasSubstr("built without CUDA"));
}
#endif

TEST(CudaProbe, AlwaysHasAMessage) { EXPECT_THAT(ProbeCuda().message, Not(IsEmpty())); }

}  // namespace
}  // namespace syncline
