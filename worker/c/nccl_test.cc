// Tests groups over NCCL through the C interface: two ranks as threads, on the stand-in.
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "comm/collective/group/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/c/syncline.h"

namespace {

using syncline::collective::MemoryStore;
using ::testing::HasSubstr;

int SetInMemory(void* context, const char* key, const void* value, size_t bytes) {
  const std::string given(static_cast<const char*>(value), bytes);
  return static_cast<MemoryStore*>(context)->Set(key, given).ok() ? 0 : 1;
}

int GetFromMemory(void* context, const char* key, int64_t timeout_ms, void* value,
                  size_t* bytes) {
  const auto found =
      static_cast<MemoryStore*>(context)->Get(key, absl::Milliseconds(timeout_ms));
  if (!found.ok() || found->size() > *bytes) return 1;
  std::memcpy(value, found->data(), found->size());
  *bytes = found->size();
  return 0;
}

class CNccl : public testing::Test {
 protected:
  CNccl() {
    setenv("SYNCLINE_NCCL_LIBRARY", SYNCLINE_TEST_FAKE_GPU, 1);
    setenv("SYNCLINE_CUDA_DRIVER", SYNCLINE_TEST_FAKE_GPU, 1);
  }

  syncline_group_options OptionsFor(const char* name, uint32_t rank) {
    syncline_group_options options = {};
    options.struct_size = sizeof options;
    options.name = name;
    options.rank = rank;
    options.ranks = 2;
    options.store = {&store_, &SetInMemory, &GetFromMemory};
    return options;
  }

  template <typename Body>
  void RunBoth(const Body& body) {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const syncline_group_options options = OptionsFor("c", rank);
        syncline_group* group = nullptr;
        ASSERT_EQ(syncline_group_create(&options, &group), SYNCLINE_OK)
            << syncline_last_error();
        body(group, rank);
        syncline_group_free(group);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  MemoryStore store_;
};

TEST_F(CNccl, ReducesInTwoRanksAndNamesWhoLeft) {
  RunBoth([&](syncline_group* group, uint32_t rank) {
    const syncline_group_options over_nccl = OptionsFor("c/nccl", rank);
    const syncline_nccl_options options = {sizeof options, &over_nccl, rank + 1, nullptr};
    syncline_nccl_group* nccl = nullptr;
    ASSERT_EQ(syncline_nccl_create(group, &options, &nccl), SYNCLINE_OK)
        << syncline_last_error();
    std::vector<float> values(1000, static_cast<float>(rank + 1));
    syncline_call call = {};
    call.struct_size = sizeof call;
    call.output = values.data();
    call.count = values.size();
    syncline_handle* handle = nullptr;
    ASSERT_EQ(syncline_nccl_start(nccl, &call, nullptr, &handle), SYNCLINE_OK);
    EXPECT_EQ(syncline_handle_wait(handle, SYNCLINE_FOREVER), SYNCLINE_OK);
    EXPECT_EQ(syncline_handle_is_done(handle), 1);
    syncline_handle_free(handle);
    EXPECT_EQ(values, std::vector<float>(1000, 3));
    call.reduction = SYNCLINE_BITWISE_AND;
    call.dtype = SYNCLINE_INT32;
    EXPECT_EQ(syncline_nccl_start(nccl, &call, nullptr, &handle), SYNCLINE_UNIMPLEMENTED);
    if (rank == 0) {
      call.reduction = SYNCLINE_SUM;
      ASSERT_EQ(syncline_nccl_start(nccl, &call, nullptr, &handle), SYNCLINE_OK);
      EXPECT_EQ(syncline_handle_wait(handle, SYNCLINE_FOREVER), SYNCLINE_ABORTED);
      EXPECT_EQ(syncline_last_error_rank(), 1);
      syncline_handle_free(handle);
    }
    syncline_nccl_leave(nccl);
    syncline_nccl_free(nccl);
  });
}

TEST_F(CNccl, SaysWhyThereIsNone) {
  RunBoth([&](syncline_group* group, uint32_t rank) {
    const syncline_group_options over_nccl = OptionsFor("c/nccl", rank);
    const syncline_nccl_options options = {sizeof options, &over_nccl, 1,
                                           rank == 1 ? "it rains" : nullptr};
    syncline_nccl_group* nccl = nullptr;
    EXPECT_EQ(syncline_nccl_create(group, &options, &nccl), SYNCLINE_UNIMPLEMENTED);
    EXPECT_THAT(syncline_last_error(), HasSubstr("rank 1: it rains"));
    syncline_call barrier = {};
    barrier.struct_size = sizeof barrier;
    barrier.op = SYNCLINE_BARRIER;
    EXPECT_EQ(syncline_group_run(group, &barrier), SYNCLINE_OK);
  });
}

TEST_F(CNccl, RefusesWhatMakesNoSense) {
  RunBoth([&](syncline_group* group, uint32_t rank) {
    syncline_group_options over_nccl = OptionsFor("c/nccl", rank);
    syncline_nccl_options options = {sizeof options, &over_nccl, 1, nullptr};
    syncline_nccl_group* nccl = nullptr;
    EXPECT_EQ(syncline_nccl_create(nullptr, &options, &nccl), SYNCLINE_INVALID_ARGUMENT);
    EXPECT_EQ(syncline_nccl_create(group, nullptr, &nccl), SYNCLINE_INVALID_ARGUMENT);
    EXPECT_EQ(syncline_nccl_create(group, &options, nullptr), SYNCLINE_INVALID_ARGUMENT);
    options.device = 0;
    EXPECT_EQ(syncline_nccl_create(group, &options, &nccl), SYNCLINE_INVALID_ARGUMENT);
    options.device = 1;
    over_nccl.rank = 1 - rank;
    EXPECT_EQ(syncline_nccl_create(group, &options, &nccl), SYNCLINE_INVALID_ARGUMENT);
    EXPECT_THAT(syncline_last_error(), HasSubstr("but the group is of rank"));
    options.struct_size = 8;
    EXPECT_EQ(syncline_nccl_create(group, &options, &nccl), SYNCLINE_INVALID_ARGUMENT);
    EXPECT_EQ(syncline_nccl_start(nullptr, nullptr, nullptr, nullptr),
              SYNCLINE_INVALID_ARGUMENT);
    syncline_nccl_free(nullptr);
    syncline_nccl_abort(nullptr);
  });
}

}  // namespace
