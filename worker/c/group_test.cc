// Groups through the C interface: a store of callbacks, two ranks as threads.
#include <array>
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

int Set(void* context, const char* key, const void* value, size_t bytes) {
  const std::string given(static_cast<const char*>(value), bytes);
  return static_cast<MemoryStore*>(context)->Set(key, given).ok() ? 0 : 1;
}

int Get(void* context, const char* key, int64_t timeout_ms, void* value, size_t* bytes) {
  const auto found =
      static_cast<MemoryStore*>(context)->Get(key, absl::Milliseconds(timeout_ms));
  if (!found.ok() || found->size() > *bytes) return 1;
  std::memcpy(value, found->data(), found->size());
  *bytes = found->size();
  return 0;
}

syncline_group_options OptionsFor(MemoryStore& store, uint32_t rank, uint32_t ranks) {
  syncline_group_options options = {};
  options.struct_size = sizeof options;
  options.name = "c";
  options.rank = rank;
  options.ranks = ranks;
  options.store = {&store, &Set, &Get};
  return options;
}

syncline_call SumOf(std::vector<float>& values) {
  syncline_call call = {};
  call.struct_size = sizeof call;
  call.output = values.data();
  call.count = values.size();
  return call;
}

TEST(CGroup, ReducesInTwoRanksAndNamesWhoLeft) {
  MemoryStore store;
  std::array<int, 2> failed_rank = {-2, -2};
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const syncline_group_options options = OptionsFor(store, rank, 2);
      syncline_group* group = nullptr;
      ASSERT_EQ(syncline_group_create(&options, &group), SYNCLINE_OK)
          << syncline_last_error();
      std::vector<float> values(1000, static_cast<float>(rank + 1));
      const syncline_call call = SumOf(values);
      syncline_handle* handle = nullptr;
      ASSERT_EQ(syncline_group_start(group, &call, &handle), SYNCLINE_OK);
      EXPECT_EQ(syncline_handle_wait(handle, SYNCLINE_FOREVER), SYNCLINE_OK);
      EXPECT_EQ(syncline_handle_is_done(handle), 1);
      syncline_handle_free(handle);
      EXPECT_EQ(values, std::vector<float>(1000, 3));
      if (rank == 0) {
        EXPECT_EQ(syncline_group_run(group, &call), SYNCLINE_ABORTED);
        failed_rank[rank] = syncline_last_error_rank();
      }
      syncline_group_free(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed_rank[0], 1);
}

TEST(CGroup, SumsInTheExactOrderWhereItIsAsked) {
  MemoryStore store;
  syncline_group_options options = OptionsFor(store, 0, 1);
  options.exact_order = 1;
  syncline_group* group = nullptr;
  ASSERT_EQ(syncline_group_create(&options, &group), SYNCLINE_OK);
  std::vector<float> values(3, 1);
  syncline_call call = SumOf(values);
  EXPECT_EQ(syncline_group_run(group, &call), SYNCLINE_OK);
  call.algorithm = "tree";  // cannot
  EXPECT_EQ(syncline_group_run(group, &call), SYNCLINE_UNIMPLEMENTED);
  syncline_group_free(group);
}

TEST(CCompressed, GivesBothRanksTheMean) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const syncline_group_options options = OptionsFor(store, rank, 2);
      syncline_group* group = nullptr;
      ASSERT_EQ(syncline_group_create(&options, &group), SYNCLINE_OK);
      syncline_compressed* mean = nullptr;
      EXPECT_EQ(syncline_compressed_create(group, "onebitt", 100, 0, &mean),
                SYNCLINE_INVALID_ARGUMENT);
      EXPECT_EQ(syncline_compressed_create(group, "fp32", 100, 0, nullptr),
                SYNCLINE_INVALID_ARGUMENT);
      ASSERT_EQ(syncline_compressed_create(group, "fp32", 100, 0, &mean), SYNCLINE_OK)
          << syncline_last_error();
      std::vector<float> values(100, static_cast<float>(rank + 1));
      EXPECT_EQ(syncline_compressed_mean(mean, values.data(), 99),
                SYNCLINE_INVALID_ARGUMENT);
      EXPECT_EQ(syncline_compressed_mean(mean, values.data(), 100), SYNCLINE_OK);
      EXPECT_EQ(values, std::vector<float>(100, 1.5f));
      EXPECT_GT(syncline_compressed_sent_bytes(mean), 0u);
      syncline_compressed_free(mean);
      syncline_group_free(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(syncline_compressed_check_codec("int8"), SYNCLINE_OK);
  EXPECT_EQ(syncline_compressed_check_codec("powersgd"), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_EQ(syncline_compressed_mean(nullptr, nullptr, 0), SYNCLINE_INVALID_ARGUMENT);
  syncline_compressed_free(nullptr);
}

TEST(CGroup, WhatIsWrongIsAnErrorAndNoCrash) {
  MemoryStore store;
  syncline_group* group = nullptr;
  syncline_group_options options = OptionsFor(store, 0, 1);
  EXPECT_EQ(syncline_group_create(nullptr, &group), SYNCLINE_INVALID_ARGUMENT);
  options.rank = 1;
  EXPECT_EQ(syncline_group_create(&options, &group), SYNCLINE_INVALID_ARGUMENT);
  options.rank = 0;
  options.store.get = nullptr;
  EXPECT_EQ(syncline_group_create(&options, &group), SYNCLINE_INVALID_ARGUMENT);
  options.store.get = &Get;
  ASSERT_EQ(syncline_group_create(&options, &group), SYNCLINE_OK);
  EXPECT_EQ(syncline_group_run(group, nullptr), SYNCLINE_INVALID_ARGUMENT);
  std::vector<float> values(4, 1);
  syncline_call call = SumOf(values);
  call.dtype = static_cast<syncline_dtype>(99);
  EXPECT_EQ(syncline_group_run(group, &call), SYNCLINE_INVALID_ARGUMENT);
  call = SumOf(values);
  call.algorithm = "rings";
  EXPECT_EQ(syncline_group_run(group, &call), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_THAT(syncline_last_error(), testing::HasSubstr("did you mean 'ring'?"));
  call = SumOf(values);
  call.output = nullptr;
  EXPECT_EQ(syncline_group_run(group, &call), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_EQ(syncline_last_error_rank(), -1);
  // One without the other.
  const size_t counts[] = {4};
  std::vector<float> received(4);
  call = SumOf(received);
  call.op = SYNCLINE_ALL_TO_ALL;
  call.input = values.data();
  call.send_counts = counts;
  EXPECT_EQ(syncline_group_run(group, &call), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_THAT(syncline_last_error(), testing::HasSubstr("give both, or neither"));
  call.receive_counts = counts;
  EXPECT_EQ(syncline_group_run(group, &call), SYNCLINE_OK) << syncline_last_error();
  syncline_group_free(group);
  syncline_group_free(nullptr);
}

TEST(CGroup, ComparesLabels) {
  MemoryStore store;
  std::array<std::string, 2> errors;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const syncline_group_options options = OptionsFor(store, rank, 2);
      syncline_group* group = nullptr;
      ASSERT_EQ(syncline_group_create(&options, &group), SYNCLINE_OK)
          << syncline_last_error();
      std::vector<float> values(10, 1);
      syncline_call call = SumOf(values);
      call.label = "a label of 24 characters";
      EXPECT_EQ(syncline_group_run(group, &call), SYNCLINE_INVALID_ARGUMENT);
      call.label = "a label of 23 character";
      EXPECT_EQ(syncline_group_run(group, &call), SYNCLINE_OK) << syncline_last_error();
      call.label = rank == 0 ? "complex64" : nullptr;
      EXPECT_EQ(syncline_group_run(group, &call), SYNCLINE_FAILED_PRECONDITION);
      errors[rank] = syncline_last_error();
      syncline_group_free(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    EXPECT_THAT(error, testing::HasSubstr("of 10 f32 (complex64)"));
  }
}

}  // namespace
