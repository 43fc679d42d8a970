// Tests libsyncline.so as a program uses it: only through its header.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "worker/c/syncline.h"

namespace {

using ::testing::HasSubstr;
using ::testing::StrEq;

class CInterface : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(syncline_options_new(&options_), SYNCLINE_OK);
    // No coordinator listens there.
    ASSERT_EQ(Set("coordinator", "127.0.0.1:1"), SYNCLINE_OK);
    ASSERT_EQ(syncline_session_create(options_, &session_), SYNCLINE_OK);
  }
  void TearDown() override {
    syncline_session_free(session_);
    syncline_options_free(options_);
  }

  syncline_code Set(const char* key, const char* value) {
    return syncline_options_set(options_, key, value);
  }
  // Returns a tensor of four elements.
  syncline_tensor Tensor(const char* name) {
    return {.struct_size = sizeof(syncline_tensor),
            .name = name,
            .dimensions = 2,
            .shape = shape_,
            .dtype = SYNCLINE_FLOAT32,
            .data = weights_,
            .learning_rate_scale = 0,
            .options = nullptr,
            .state = nullptr,
            .frozen = 0,
            .device = 0};
  }
  // Declares the tensor and returns the result.
  syncline_code Declare(const syncline_tensor& tensor) {
    uint32_t id = 0;
    return syncline_declare(session_, &tensor, &id);
  }

  const uint64_t shape_[2] = {2, 2};
  float weights_[4] = {};
  syncline_options* options_ = nullptr;
  syncline_session* session_ = nullptr;
};

void ExpectError(syncline_code code, syncline_code expected, const char* message) {
  EXPECT_EQ(code, expected) << syncline_last_error();
  EXPECT_THAT(syncline_last_error(), HasSubstr(message));
}

TEST_F(CInterface, SaysItsVersion) {
  EXPECT_EQ(syncline_abi_version(), uint32_t{SYNCLINE_ABI_VERSION});
  EXPECT_THAT(syncline_version(), HasSubstr("."));
}

TEST_F(CInterface, GivesMemoryThatOutlivesTheSession) {
  syncline_memory* memory = nullptr;
  ASSERT_EQ(syncline_memory_new(session_, 1000, SYNCLINE_FLOAT32, &memory), SYNCLINE_OK);
  auto* const values = static_cast<float*>(syncline_memory_data(memory));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(values) % 4096, 0u);
  syncline_session_free(session_);
  session_ = nullptr;
  for (int i = 0; i < 1000; ++i) values[i] = 1;
  syncline_memory_free(memory);
}

TEST_F(CInterface, GivesNoMemoryForWhatIsNoTensor) {
  syncline_memory* memory = nullptr;
  ExpectError(syncline_memory_new(session_, uint64_t{1} << 60, SYNCLINE_FLOAT32, &memory),
              SYNCLINE_INVALID_ARGUMENT, "a tensor has at most");
  EXPECT_EQ(memory, nullptr);
  ExpectError(syncline_memory_new(session_, 1, SYNCLINE_INT8, &memory),
              SYNCLINE_INVALID_ARGUMENT, "none of float32, bfloat16, float16");
  ExpectError(syncline_memory_new(session_, 1, SYNCLINE_FLOAT32, nullptr),
              SYNCLINE_INVALID_ARGUMENT, "out");
  ExpectError(syncline_memory_new(nullptr, 1, SYNCLINE_FLOAT32, &memory),
              SYNCLINE_INVALID_ARGUMENT, "session");
  EXPECT_EQ(syncline_memory_data(nullptr), nullptr);
  syncline_memory_free(nullptr);
}

TEST_F(CInterface, OptionsReadBackAsTheyWereSet) {
  const std::pair<const char*, const char*> cases[] = {
      {"coordinator", "10.0.0.1:7070"},
      {"job", "j"},
      {"run_id", "r1"},
      {"rank", "3"},
      {"world_size", "8"},
      {"optimizer", "adamw:beta2=0.95,lr=0.001"},
      {"state", "bf16"},
      {"schedule", "cosine:total_steps=100"},
      {"gradient", "clip_global_norm=1"},
      {"loss_scaling", "torch"},
      {"nonfinite_steps", "skip"},
      {"accumulate_steps", "4"},
      {"codec_threads", "auto"},
      {"codec_threads", "3"},
      {"accumulate_on", "worker"},
      {"aggregation", "arrival"},
      {"mode", "ssp:staleness=3"},
      {"push", "topk:ratio=0.01"},
      {"publish", "onebit"},
      {"checkpoint_every", "10 min"},
      {"checkpoint_keep", "7"},
      {"resume", "run2-step500"},
      {"durability", "peer"},
      {"failure_timeout", "20s"},
      {"start_timeout", "1m30s"},
      {"tls_cert", "c.pem"},
      {"tls_key", "k.pem"},
      {"tls_ca", "ca.pem"},
      {"identities", "list"}};
  for (const auto& [key, value] : cases) {
    ASSERT_EQ(Set(key, value), SYNCLINE_OK) << syncline_last_error();
    EXPECT_THAT(syncline_options_get(options_, key), StrEq(value)) << key;
  }
  EXPECT_EQ(syncline_options_get(options_, "codec"), nullptr);
  EXPECT_THAT(syncline_options_get(options_, "preset"), StrEq(""));
  ASSERT_EQ(Set("preset", "sparseloco"), SYNCLINE_OK) << syncline_last_error();
  EXPECT_THAT(syncline_options_get(options_, "preset"), StrEq("sparseloco"));
  EXPECT_THAT(syncline_options_get(options_, "optimizer"), StrEq("sgd:lr=1"));
  EXPECT_THAT(syncline_options_get(options_, "push"), StrEq("sparseloco"));
  ASSERT_EQ(Set("mode", "ssp:4"), SYNCLINE_OK) << syncline_last_error();
  EXPECT_THAT(syncline_options_get(options_, "mode"), StrEq("ssp:staleness=4"));
}

TEST_F(CInterface, RefusedOptionsNameWhatIsAllowedAndChangeNothing) {
  ExpectError(Set("optimiser", "sgd"), SYNCLINE_INVALID_ARGUMENT,
              "did you mean 'optimizer'");
  ExpectError(Set("aggregation", "fast"), SYNCLINE_INVALID_ARGUMENT,
              "neither rank_order nor arrival");
  ExpectError(Set("rank", "-1"), SYNCLINE_INVALID_ARGUMENT, "option rank: '-1'");
  ExpectError(Set("failure_timeout", "10"), SYNCLINE_INVALID_ARGUMENT, "'10'");
  ExpectError(Set("optimizer", "adamw:lr"), SYNCLINE_INVALID_ARGUMENT, "'lr'");
  EXPECT_THAT(syncline_options_get(options_, "optimizer"), StrEq("sgd:lr=0.001"));
  EXPECT_EQ(syncline_last_error_exit_code(), 2);
  ExpectError(Set("push", "int3"), SYNCLINE_INVALID_ARGUMENT, "int3");
  ExpectError(Set("durability", "paper"), SYNCLINE_INVALID_ARGUMENT,
              "option durability: durability is 'paper', allowed are none, disk, peer "
              "and disk+peer");
  EXPECT_THAT(syncline_options_get(options_, "durability"), StrEq("none"));
  ASSERT_EQ(Set("codec_threads", "65"), SYNCLINE_OK);
  syncline_session* refused = nullptr;
  ExpectError(syncline_session_create(options_, &refused), SYNCLINE_INVALID_ARGUMENT,
              "codec_threads is 65");
  EXPECT_EQ(refused, nullptr);
}

TEST_F(CInterface, TakesWhatLaunchersSet) {
  setenv("RANK", "5", 1);
  syncline_options* given = nullptr;
  ASSERT_EQ(syncline_options_from_env(&given), SYNCLINE_OK);
  EXPECT_THAT(syncline_options_get(given, "rank"), StrEq("5"));
  syncline_options_free(given);
  setenv("RANK", "first", 1);
  ExpectError(syncline_options_from_env(&given), SYNCLINE_INVALID_ARGUMENT, "RANK=first");
  unsetenv("RANK");
}

TEST_F(CInterface, NullIsAnError) {
  EXPECT_EQ(syncline_options_new(nullptr), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_EQ(syncline_options_from_env(nullptr), SYNCLINE_INVALID_ARGUMENT);
  ExpectError(Set(nullptr, ""), SYNCLINE_INVALID_ARGUMENT, "key is NULL");
  ExpectError(Set("job", nullptr), SYNCLINE_INVALID_ARGUMENT, "value is NULL");
  EXPECT_EQ(syncline_options_get(nullptr, "job"), nullptr);
  EXPECT_EQ(syncline_options_get(options_, nullptr), nullptr);
  syncline_options_set_log(nullptr, nullptr, nullptr);
  syncline_options_free(nullptr);
  EXPECT_EQ(syncline_session_create(nullptr, &session_), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_EQ(syncline_session_create(options_, nullptr), SYNCLINE_INVALID_ARGUMENT);
  syncline_session_free(nullptr);
  const syncline_tensor tensor = Tensor("a");
  ExpectError(syncline_declare(nullptr, &tensor, nullptr), SYNCLINE_INVALID_ARGUMENT,
              "session is NULL");
  EXPECT_EQ(syncline_declare(session_, &tensor, nullptr), SYNCLINE_INVALID_ARGUMENT);
  uint32_t id = 0;
  EXPECT_EQ(syncline_declare(session_, nullptr, &id), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_EQ(syncline_start(nullptr, 0), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_EQ(syncline_skip(session_, nullptr, 1), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_EQ(syncline_get_stats(session_, nullptr), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_EQ(syncline_save_residuals(session_, nullptr), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_EQ(syncline_restore_residuals(session_, nullptr), SYNCLINE_INVALID_ARGUMENT);
  EXPECT_EQ(syncline_is_ready(nullptr, 0), -1);
  EXPECT_EQ(syncline_keeps_late(nullptr, 0), -1);
  EXPECT_EQ(syncline_step(nullptr), 0u);
  EXPECT_EQ(syncline_loss_scale(nullptr), 1.0f);
  EXPECT_EQ(syncline_world_size(nullptr), 0u);
  syncline_report_loss(nullptr, 0, 0, 0);
  EXPECT_EQ(syncline_begin_pass(nullptr, SYNCLINE_FORWARD), -1);
  syncline_end_pass(nullptr);
  syncline_cancel(nullptr);
  syncline_uncancel(nullptr);
  EXPECT_EQ(syncline_leave(nullptr), SYNCLINE_INVALID_ARGUMENT);
}

TEST_F(CInterface, DeclaresWhatItIsToldAndRefusesTheRest) {
  syncline_tensor tensor = Tensor("a");
  tensor.struct_size = offsetof(syncline_tensor, data);
  ExpectError(Declare(tensor), SYNCLINE_INVALID_ARGUMENT, "struct_size");
  tensor.struct_size = 0;
  ExpectError(Declare(tensor), SYNCLINE_INVALID_ARGUMENT, "struct_size");
  tensor = Tensor(nullptr);
  ExpectError(Declare(tensor), SYNCLINE_INVALID_ARGUMENT, "tensor.name is NULL");
  tensor = Tensor("a");
  tensor.shape = nullptr;
  ExpectError(Declare(tensor), SYNCLINE_INVALID_ARGUMENT, "tensor.shape is NULL");
  tensor = Tensor("a");
  tensor.dimensions = 1u << 30;
  ExpectError(Declare(tensor), SYNCLINE_INVALID_ARGUMENT, "dimensions");
  tensor = Tensor("a");
  tensor.data = nullptr;
  ExpectError(Declare(tensor), SYNCLINE_INVALID_ARGUMENT, "has no memory");
  tensor = Tensor("a");
  const int unknown = 77;
  std::memcpy(&tensor.dtype, &unknown, sizeof unknown);
  ExpectError(Declare(tensor), SYNCLINE_INVALID_ARGUMENT, "dtype 77");
  tensor = Tensor("a");
  tensor.options = "weight_decay";
  ExpectError(Declare(tensor), SYNCLINE_INVALID_ARGUMENT, "weight_decay");
  const uint64_t huge[2] = {uint64_t{1} << 60, uint64_t{1} << 60};
  tensor = Tensor("a");
  tensor.shape = huge;
  ExpectError(Declare(tensor), SYNCLINE_INVALID_ARGUMENT, "more than");
  EXPECT_EQ(Declare(Tensor("a")), SYNCLINE_OK);
  ExpectError(Declare(Tensor("a")), SYNCLINE_ALREADY_EXISTS, "'a'");
  // An older caller, which knows only the first fields.
  tensor = Tensor("b");
  tensor.struct_size = offsetof(syncline_tensor, learning_rate_scale);
  tensor.options = "nonsense";
  EXPECT_EQ(Declare(tensor), SYNCLINE_OK) << syncline_last_error();
  // A caller that is newer than this library.
  struct {
    syncline_tensor known;
    char more[64];
  } newer = {Tensor("c"), {}};
  newer.known.struct_size = sizeof newer;
  EXPECT_EQ(Declare(newer.known), SYNCLINE_OK) << syncline_last_error();
}

TEST_F(CInterface, CallsInTheWrongOrderAreErrors) {
  ExpectError(syncline_start(session_, 0), SYNCLINE_FAILED_PRECONDITION, "no tensor");
  ASSERT_EQ(Declare(Tensor("a")), SYNCLINE_OK);
  const auto push = [&](uint32_t tensor, const void* gradient, int dtype) {
    return syncline_push_pull(session_, tensor, gradient,
                              static_cast<syncline_dtype>(dtype), 1);
  };
  ExpectError(push(0, weights_, 0), SYNCLINE_FAILED_PRECONDITION, "not started");
  ExpectError(push(0, weights_, 1), SYNCLINE_FAILED_PRECONDITION, "not started");
  ExpectError(push(1, weights_, 0), SYNCLINE_INVALID_ARGUMENT, "no tensor number 1");
  ExpectError(push(0, nullptr, 0), SYNCLINE_INVALID_ARGUMENT, "no gradient");
  ExpectError(push(0, weights_, 3), SYNCLINE_INVALID_ARGUMENT, "dtype 3");
  ExpectError(syncline_scale_learning_rate(session_, 0, 0.5),
              SYNCLINE_FAILED_PRECONDITION, "not started");
  EXPECT_EQ(syncline_skip(session_, nullptr, 0), SYNCLINE_OK);
  EXPECT_EQ(syncline_wait(session_, 0, 0), SYNCLINE_FAILED_PRECONDITION);
  EXPECT_EQ(syncline_wait_all(session_, 0), SYNCLINE_FAILED_PRECONDITION);
  ExpectError(syncline_wait(session_, 0, -2), SYNCLINE_INVALID_ARGUMENT, "timeout_ms");
  EXPECT_EQ(syncline_barrier(session_, 0), SYNCLINE_FAILED_PRECONDITION);
  EXPECT_EQ(syncline_leave(session_), SYNCLINE_FAILED_PRECONDITION);
  float average[4];
  EXPECT_EQ(syncline_pull_average(session_, 0, average, 0), SYNCLINE_FAILED_PRECONDITION);
  ExpectError(syncline_pull_average(session_, 0, nullptr, 0), SYNCLINE_INVALID_ARGUMENT,
              "out is NULL");
  EXPECT_EQ(syncline_pull_average(session_, 9, average, 0), SYNCLINE_INVALID_ARGUMENT);
  uint64_t updates = 0;
  const auto pull = [&](uint32_t tensor, float* out) {
    return syncline_pull_state(session_, tensor, 0, out, &updates, 0);
  };
  EXPECT_EQ(pull(0, average), SYNCLINE_FAILED_PRECONDITION);
  ExpectError(pull(0, nullptr), SYNCLINE_INVALID_ARGUMENT, "out is NULL");
  EXPECT_EQ(pull(9, average), SYNCLINE_INVALID_ARGUMENT);
  const float* arrays[] = {average, nullptr};
  EXPECT_EQ(syncline_set_state(session_, 0, 7, arrays, 1), SYNCLINE_OK);
  EXPECT_EQ(syncline_set_state(session_, 9, 7, arrays, 1), SYNCLINE_INVALID_ARGUMENT);
  ExpectError(syncline_set_state(session_, 0, uint64_t{1} << 40, arrays, 1),
              SYNCLINE_INVALID_ARGUMENT, "4294967295");
  ExpectError(syncline_set_state(session_, 0, 7, arrays, 2), SYNCLINE_INVALID_ARGUMENT,
              "an array is NULL");
  ExpectError(syncline_set_state(session_, 0, 7, nullptr, 1), SYNCLINE_INVALID_ARGUMENT,
              "arrays is NULL");
  EXPECT_EQ(syncline_is_ready(session_, 0), 0);
  EXPECT_EQ(syncline_is_ready(session_, 1), -1);
  EXPECT_EQ(syncline_keeps_late(session_, 1), -1);
  syncline_report_loss(session_, 0, 1.0, 1);
  EXPECT_EQ(syncline_begin_pass(session_, SYNCLINE_FORWARD), 0) << "no trace is open";
  EXPECT_EQ(syncline_begin_pass(session_, static_cast<syncline_pass>(3)), -1);
  syncline_end_pass(session_);
}

TEST_F(CInterface, AStartThatFailsIsAnErrorAndTheEnd) {
  ASSERT_EQ(Declare(Tensor("a")), SYNCLINE_OK);
  syncline_cancel(session_);
  ExpectError(syncline_start(session_, SYNCLINE_FOREVER), SYNCLINE_CANCELLED,
              "cancelled");
  syncline_uncancel(session_);
  EXPECT_EQ(syncline_start(session_, SYNCLINE_FOREVER), SYNCLINE_FAILED_PRECONDITION);
  EXPECT_EQ(Declare(Tensor("b")), SYNCLINE_FAILED_PRECONDITION);
  ExpectError(syncline_wait(session_, 0, 0), SYNCLINE_FAILED_PRECONDITION, "over");
  EXPECT_EQ(syncline_push_pull(session_, 0, weights_, SYNCLINE_FLOAT32, 1),
            SYNCLINE_FAILED_PRECONDITION);
  EXPECT_EQ(syncline_save_residuals(session_, "x"), SYNCLINE_FAILED_PRECONDITION);
  EXPECT_EQ(syncline_leave(session_), SYNCLINE_FAILED_PRECONDITION);
}

TEST_F(CInterface, AnUnreachableCoordinatorIsUnavailableWithItsExitCode) {
  ASSERT_EQ(Declare(Tensor("a")), SYNCLINE_OK);
  ExpectError(syncline_start(session_, 50), SYNCLINE_UNAVAILABLE, "127.0.0.1:1");
  EXPECT_EQ(syncline_last_error_exit_code(), 5);
}

TEST_F(CInterface, SaysWhatItWaitsForWithoutALogFunction) {
  syncline_session_free(session_);
  ASSERT_EQ(Set("failure_timeout", "1s"), SYNCLINE_OK);
  ASSERT_EQ(syncline_session_create(options_, &session_), SYNCLINE_OK);
  ASSERT_EQ(Declare(Tensor("a")), SYNCLINE_OK);
  testing::internal::CaptureStderr();
  EXPECT_EQ(syncline_start(session_, 6000), SYNCLINE_UNAVAILABLE);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("syncline: waiting for the coordinator at 127.0.0.1:1 "));
}

TEST_F(CInterface, EachThreadHasItsOwnError) {
  ExpectError(Set("jop", "x"), SYNCLINE_INVALID_ARGUMENT, "'jop'");
  std::thread([] {
    EXPECT_THAT(syncline_last_error(), StrEq(""));
    EXPECT_EQ(syncline_last_error_exit_code(), 0);
    EXPECT_EQ(syncline_leave(nullptr), SYNCLINE_INVALID_ARGUMENT);
  }).join();
  EXPECT_THAT(syncline_last_error(), HasSubstr("'jop'"));
}

TEST_F(CInterface, StatsFillWhatTheCallerKnows) {
  syncline_stats stats = {};
  stats.struct_size = offsetof(syncline_stats, epoch);
  stats.members = 77;
  ASSERT_EQ(syncline_get_stats(session_, &stats), SYNCLINE_OK);
  EXPECT_EQ(stats.members, 77u) << "beyond struct_size";
  stats.struct_size = sizeof stats;
  ASSERT_EQ(syncline_get_stats(session_, &stats), SYNCLINE_OK);
  EXPECT_EQ(stats.members, 0u);
  EXPECT_EQ(stats.late_steps, 0u);
  EXPECT_EQ(stats.slowest_rank, -1);
  EXPECT_EQ(stats.struct_size, sizeof stats);
  stats.struct_size = 1;
  EXPECT_EQ(syncline_get_stats(session_, &stats), SYNCLINE_INVALID_ARGUMENT);
}

TEST_F(CInterface, LogLinesGoToTheFunction) {
  using Lines = std::vector<std::pair<syncline_log_level, std::string>>;
  Lines lines;
  syncline_options_set_log(
      options_,
      [](void* context, syncline_log_level level, const char* message) {
        static_cast<Lines*>(context)->emplace_back(level, message);
      },
      &lines);
  ASSERT_EQ(Set("optimizer", "lbfgs:lr=0.1"), SYNCLINE_OK);
  syncline_session* warned = nullptr;
  ASSERT_EQ(syncline_session_create(options_, &warned), SYNCLINE_OK);
  EXPECT_NE(syncline_start(warned, 0), SYNCLINE_OK) << "without a tensor";
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].first, SYNCLINE_LOG_WARNING);
  EXPECT_THAT(lines[0].second, HasSubstr("lbfgs"));
  syncline_session_free(warned);
}

TEST_F(CInterface, AChildMadeByForkHearsThatTheSessionIsNotItsOwn) {
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = syncline_wait_all(session_, 0) == SYNCLINE_FAILED_PRECONDITION;
    const bool named = std::strstr(syncline_last_error(), "child") != nullptr;
    syncline_session_free(session_);
    _exit(refused && named ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
