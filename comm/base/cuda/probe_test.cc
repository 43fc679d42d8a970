#include "comm/base/cuda/probe.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace syncline {
namespace {

namespace fs = std::filesystem;

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
  EXPECT_THAT(probe.message, HasSubstr("is not a shared library"));
}

TEST(CudaProbe, RefusesALibraryThatIsNoModule) {
  const CudaProbe probe = ProbeCudaModule(SYNCLINE_TEST_FOREIGN_LIBRARY);
  EXPECT_FALSE(probe.loaded);
  EXPECT_THAT(probe.message, HasSubstr("is not a Syncline CUDA module"));
}

TEST(CudaProbe, DoesNotOpenALibraryThatIsNoModule) {
  // The test passes if the process still runs.
  EXPECT_THAT(ProbeCudaModule(SYNCLINE_TEST_DEADLY_LIBRARY).message,
              HasSubstr("is not a Syncline CUDA module"));
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
  EXPECT_THAT(ProbeCuda().message, HasSubstr("unset it"));
  setenv("SYNCLINE_CUDA_MODULE", SYNCLINE_TEST_FAKE_MODULE, 1);
  EXPECT_TRUE(ProbeCuda().loaded);
  EXPECT_THAT(ProbeCuda().message, Not(HasSubstr("unset it")));
  unsetenv("SYNCLINE_CUDA_MODULE");
  EXPECT_THAT(ProbeCuda().path, HasSubstr("libsyncline_cuda.so"));
}

TEST(CudaProbe, HandsOutTheModuleThatItLoaded) {
  EXPECT_EQ(ProbeCudaModule(SYNCLINE_TEST_OLD_MODULE).module, nullptr);
  const CudaProbe probe = ProbeCudaModule(SYNCLINE_TEST_FAKE_MODULE);
  ASSERT_NE(probe.module, nullptr);
  EXPECT_NE(dlsym(probe.module, "SynclineCudaDescribe"), nullptr);
}

// In a Python process the program is python, and the module lies beside libsyncline.so.
class CudaProbeOfALibrary : public testing::Test {
 protected:
  CudaProbeOfALibrary() {
    unsetenv("SYNCLINE_CUDA_MODULE");
    fs::remove_all(root_);
    for (const char* const folder : {"bin", "lib", "package"}) {
      fs::create_directories(root_ / folder);
    }
    fs::copy_file(SYNCLINE_TEST_PROGRAM, root_ / "bin/program");
    fs::copy_file(SYNCLINE_TEST_LIBRARY, root_ / "package/libuser.so");
  }
  ~CudaProbeOfALibrary() override { fs::remove_all(root_); }

  fs::path ModuleIn(const char* folder) const {
    return root_ / folder / "libsyncline_cuda.so";
  }
  void PutModuleIn(const char* folder) const {
    fs::copy_file(SYNCLINE_TEST_FAKE_MODULE, ModuleIn(folder));
  }
  fs::path Probed() const {
    const std::string command =
        (root_ / "bin/program").string() + " " + (root_ / "package/libuser.so").string();
    FILE* const output = popen(command.c_str(), "r");
    std::string path(4096, '\0');
    path.resize(std::fread(path.data(), 1, path.size(), output));
    EXPECT_EQ(pclose(output), 0) << path;
    return path;
  }

  const fs::path root_ =
      (fs::path(testing::TempDir()) / ("probe_" + std::to_string(getpid())))
          .lexically_normal();
};

TEST_F(CudaProbeOfALibrary, LooksBesideItFirst) {
  EXPECT_EQ(Probed(), ModuleIn("package"));
  PutModuleIn("lib");
  EXPECT_EQ(Probed(), ModuleIn("lib"));
  PutModuleIn("bin");
  EXPECT_EQ(Probed(), ModuleIn("bin"));
  PutModuleIn("package");
  EXPECT_EQ(Probed(), ModuleIn("package"));
}

TEST(CudaProbe, LooksBesideTheProgramThatItIsIn) {
  unsetenv("SYNCLINE_CUDA_MODULE");
  const fs::path program = fs::read_symlink("/proc/self/exe");
  EXPECT_EQ(ProbeCuda().path, program.parent_path() / "libsyncline_cuda.so");
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
