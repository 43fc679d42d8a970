// Tests tensors in GPU memory through syncline.h. The emulated GPU of the CUDA module's
// stand-in has memory that the host cannot access.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "worker/c/syncline.h"

namespace {

using ::testing::HasSubstr;

// The emulated host has two devices.
constexpr uint64_t kFirst = 1;
constexpr uint64_t kMissing = 3;

void ExpectError(syncline_code code, syncline_code expected, const char* message) {
  EXPECT_EQ(code, expected) << syncline_last_error();
  EXPECT_THAT(syncline_last_error(), HasSubstr(message));
}

class CDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("SYNCLINE_CUDA_MODULE", SYNCLINE_FAKE_CUDA_MODULE, 1);
    syncline_options* options = nullptr;
    ASSERT_EQ(syncline_options_new(&options), SYNCLINE_OK);
    ASSERT_EQ(syncline_session_create(options, &session_), SYNCLINE_OK);
    syncline_options_free(options);
  }
  void TearDown() override { syncline_session_free(session_); }

  // Returns a scalar in device memory, which nothing accesses before the session starts.
  static syncline_tensor Tensor(const char* name, uint64_t device) {
    syncline_tensor tensor = {};
    tensor.struct_size = sizeof tensor;
    tensor.name = name;
    tensor.data = reinterpret_cast<void*>(uintptr_t{1} << 62 | 4096);
    tensor.device = device;
    return tensor;
  }
  syncline_code Declare(const syncline_tensor& tensor) {
    uint32_t id = 0;
    return syncline_declare(session_, &tensor, &id);
  }

  syncline_session* session_ = nullptr;
};

TEST_F(CDevice, SaysWhichDevicesTensorsMayLieIn) {
  EXPECT_EQ(syncline_device_check(0), SYNCLINE_OK);
  EXPECT_EQ(syncline_device_check(kFirst), SYNCLINE_OK) << syncline_last_error();
  EXPECT_EQ(syncline_device_check(kFirst + 1), SYNCLINE_OK) << syncline_last_error();
  ExpectError(syncline_device_check(kMissing), SYNCLINE_INVALID_ARGUMENT,
              "no CUDA device 2");
  ExpectError(syncline_device_check(std::numeric_limits<uint64_t>::max()),
              SYNCLINE_INVALID_ARGUMENT, "must be 0, which is host memory, or 1 +");
}

TEST_F(CDevice, DeclaresTensorsThereAndRefusesDevicesThatAreNot) {
  EXPECT_EQ(Declare(Tensor("there", kFirst)), SYNCLINE_OK) << syncline_last_error();
  ExpectError(Declare(Tensor("elsewhere", kMissing)), SYNCLINE_INVALID_ARGUMENT,
              "no CUDA device 2");
}

TEST_F(CDevice, SaysNothingOfCodecsBeforeTheStart) {
  ASSERT_EQ(Declare(Tensor("there", kFirst)), SYNCLINE_OK) << syncline_last_error();
  EXPECT_STREQ(syncline_device_codecs(session_), "");
  EXPECT_STREQ(syncline_device_codecs(nullptr), "");
}

// The older struct ended with padding, which a caller may have left uninitialised.
TEST_F(CDevice, KnowsOfNoDeviceFromOlderCallers) {
  struct Older {
    size_t struct_size;
    const char* name;
    uint32_t dimensions;
    const uint64_t* shape;
    syncline_dtype dtype;
    void* data;
    double learning_rate_scale;
    const char* options;
    const char* state;
    int32_t frozen;
  };
  static_assert(sizeof(Older) == offsetof(syncline_tensor, device));
  syncline_tensor tensor = Tensor("older", kMissing);
  float weight = 0;
  tensor.data = &weight;
  tensor.struct_size = sizeof(Older);
  EXPECT_EQ(Declare(tensor), SYNCLINE_OK) << syncline_last_error();
}

TEST_F(CDevice, TakesGradientsFromWhereTheyAre) {
  ASSERT_EQ(Declare(Tensor("there", kFirst)), SYNCLINE_OK) << syncline_last_error();
  const auto push = [&](const void* gradient, uint64_t device) {
    return syncline_push_pull_from(session_, 0, gradient, SYNCLINE_FLOAT32, device, 1);
  };
  const void* const gradient = Tensor("", kFirst).data;
  ExpectError(push(gradient, kFirst), SYNCLINE_FAILED_PRECONDITION, "not started");
  ExpectError(push(gradient, kMissing), SYNCLINE_INVALID_ARGUMENT, "no CUDA device 2");
  ExpectError(push(gradient, kFirst + 1), SYNCLINE_INVALID_ARGUMENT,
              "gradient of tensor 'there' lies on CUDA device 1, its weights on CUDA "
              "device 0; it must lie where the weights do, or in host memory");
  ExpectError(push(gradient, 0), SYNCLINE_FAILED_PRECONDITION, "not started");
  syncline_tensor on_host = Tensor("here", 0);
  float weight = 0;
  on_host.data = &weight;
  ASSERT_EQ(Declare(on_host), SYNCLINE_OK) << syncline_last_error();
  ExpectError(syncline_push_pull_from(session_, 1, gradient, SYNCLINE_FLOAT32, kFirst, 1),
              SYNCLINE_INVALID_ARGUMENT,
              "'here' lies on CUDA device 0, its weights in host memory");
  ExpectError(syncline_push_pull_from(nullptr, 0, gradient, SYNCLINE_FLOAT32, 0, 1),
              SYNCLINE_INVALID_ARGUMENT, "session is NULL");
}

}  // namespace
