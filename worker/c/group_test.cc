// Tests groups through the C interface, with a store of callbacks and two ranks as
// threads.
#include <array>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "comm/base/temp_directory.h"
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
  call.algorithm = "tree";  // not possible for this operation
  EXPECT_EQ(syncline_group_run(group, &call), SYNCLINE_UNIMPLEMENTED);
  syncline_group_free(group);
}

TEST(CGroup, ChoosesByTheCostsOfAFile) {
  MemoryStore store;
  const syncline::TempDirectory directory;
  const std::string path = directory.File("costs.json");
  syncline_group_options options = OptionsFor(store, 0, 1);
  options.costs = path.c_str();
  std::ofstream(path) << "{}";
  syncline_group* group = nullptr;
  EXPECT_EQ(syncline_group_create(&options, &group), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_THAT(syncline_last_error(), testing::HasSubstr(path));
  std::ofstream(path) << R"({"version": 1, "per_reduced_byte_s": 1e-9})";
  options.name = "again";
  ASSERT_EQ(syncline_group_create(&options, &group), SYNCLINE_OK);
  EXPECT_THAT(syncline_group_describe_costs(group),
              testing::HasSubstr("costs are those of a file"));
  syncline_group_free(group);
  EXPECT_STREQ(syncline_group_describe_costs(nullptr), "");
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

TEST(CGossip, BringsBothRanksToTheirMean) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const syncline_group_options options = OptionsFor(store, rank, 2);
      syncline_group* group = nullptr;
      ASSERT_EQ(syncline_group_create(&options, &group), SYNCLINE_OK);
      syncline_gossip_options settings = {};
      settings.struct_size = sizeof settings;
      settings.graph = "ring";
      settings.codec = "fp32";
      settings.count = 100;
      syncline_gossip* gossip = nullptr;
      ASSERT_EQ(syncline_gossip_create(group, &settings, &gossip), SYNCLINE_OK)
          << syncline_last_error();
      const std::vector<float> values(100, static_cast<float>(rank + 1));
      std::vector<float> delta(100);
      int partner = -1;
      EXPECT_EQ(
          syncline_gossip_exchange(gossip, 0, values.data(), delta.data(), 99, &partner),
          SYNCLINE_INVALID_ARGUMENT);
      EXPECT_EQ(
          syncline_gossip_exchange(gossip, 0, values.data(), delta.data(), 100, &partner),
          SYNCLINE_OK);
      EXPECT_EQ(partner, static_cast<int>(1 - rank));
      EXPECT_EQ(delta, std::vector<float>(100, rank == 0 ? 0.5f : -0.5f));
      double distance = 0;
      EXPECT_EQ(syncline_gossip_distance(gossip, values.data(), 99, &distance),
                SYNCLINE_INVALID_ARGUMENT);
      EXPECT_EQ(syncline_gossip_distance(gossip, values.data(), 100, &distance),
                SYNCLINE_OK);
      EXPECT_DOUBLE_EQ(distance, 5);
      EXPECT_GT(syncline_gossip_sent_bytes(gossip), 0u);
      EXPECT_EQ(syncline_gossip_kept_bytes(gossip), 0u);
      // A garbage collector may free them in this order.
      syncline_group_free(group);
      EXPECT_GT(syncline_gossip_sent_bytes(gossip), 0u);
      EXPECT_EQ(syncline_gossip_distance(gossip, values.data(), 100, &distance),
                SYNCLINE_OK);
      syncline_gossip_free(gossip);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CGossip, SaysWhatIsWrongWithItsSettings) {
  syncline_gossip_options settings = {};
  settings.struct_size = sizeof settings;
  settings.graph = "ring";
  settings.codec = "topk:ratio=0.01";
  double gamma = 0;
  EXPECT_EQ(syncline_gossip_check(&settings, &gamma), SYNCLINE_OK);
  EXPECT_NEAR(gamma, 0.05, 1e-9);
  settings.gamma = 1.5;
  EXPECT_EQ(syncline_gossip_check(&settings, nullptr), SYNCLINE_INVALID_ARGUMENT);
  settings.gamma = 0;
  settings.graph = "star";
  EXPECT_EQ(syncline_gossip_check(&settings, nullptr), SYNCLINE_INVALID_ARGUMENT);
  settings.graph = nullptr;
  EXPECT_EQ(syncline_gossip_check(&settings, nullptr), SYNCLINE_INVALID_ARGUMENT);
  settings.struct_size = 8;
  EXPECT_EQ(syncline_gossip_check(&settings, nullptr), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_EQ(syncline_gossip_check(nullptr, nullptr), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_EQ(syncline_gossip_exchange(nullptr, 0, nullptr, nullptr, 0, nullptr),
            SYNCLINE_INVALID_ARGUMENT);
  syncline_gossip_free(nullptr);
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
  // One count array without the other is an error.
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
