// Syncline's client for C++17: syncline.h with objects that free themselves, and
// exceptions for errors. It is header-only and calls only C functions, so it works with
// any compiler and standard library.
//
//   auto options = syncline::Options::FromEnv();  // what `syncline run` sets
//   options.Set("optimizer", "adamw:lr=0.001");
//   syncline::Session session(options);
//   const auto weight = session.Declare("fc.weight", {10, 128}, weights.data());
//   session.Start();
//   while (session.step() < steps) {
//     session.Wait(weight);  // just before its layer runs
//     ... forward, backward ...
//     session.PushPull(weight, gradient.data(), samples);
//   }
//   session.WaitAll();
//   session.Leave();
//
// syncline.h describes each function, how long memory stays in use, and which thread may
// call what. Do not include this header together with worker/client/session.h of
// Syncline's own tree, which has the same names.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "syncline.h"

namespace syncline {

using TensorId = uint32_t;

class Error : public std::runtime_error {
 public:
  // Takes the message of this thread's last error.
  explicit Error(syncline_code code)
      : std::runtime_error(syncline_last_error()),
        code_(code),
        exit_code_(syncline_last_error_exit_code()) {}

  syncline_code code() const noexcept { return code_; }
  // The exit code for a program that ends because of this error. Launchers understand it.
  int exit_code() const noexcept { return exit_code_; }

 private:
  syncline_code code_;
  int exit_code_;
};

inline void Check(syncline_code code) {
  if (code != SYNCLINE_OK) throw Error(code);
}

// Throws if tensors cannot be in the memory of the device; the error says why.
inline void CheckDevice(uint64_t device) { Check(syncline_device_check(device)); }

// Limit of calls that wait. The default is Forever().
using Timeout = std::chrono::milliseconds;
inline constexpr Timeout Forever() { return Timeout(SYNCLINE_FOREVER); }

class Options {
 public:
  Options() : Options(&syncline_options_new) {}
  // Makes options from the environment that launchers set.
  static Options FromEnv() { return Options(&syncline_options_from_env); }

  Options& Set(const std::string& key, const std::string& value) {
    Check(syncline_options_set(handle(), key.c_str(), value.c_str()));
    return *this;
  }
  // Returns "" for an unknown key.
  std::string Get(const std::string& key) const {
    const char* value = syncline_options_get(handle(), key.c_str());
    return value == nullptr ? std::string() : std::string(value);
  }
  void SetLog(syncline_log_function log, void* context) {
    syncline_options_set_log(handle(), log, context);
  }

  syncline_options* handle() const noexcept { return handle_.get(); }

 private:
  explicit Options(syncline_code (*make)(syncline_options**)) {
    syncline_options* made = nullptr;
    Check(make(&made));
    handle_.reset(made);
  }

  struct Free {
    void operator()(syncline_options* options) const noexcept {
      syncline_options_free(options);
    }
  };
  std::unique_ptr<syncline_options, Free> handle_;
};

// Further fields of syncline_tensor. The defaults are the job's.
struct TensorOptions {
  double learning_rate_scale = 1;
  std::string options = {};  // of the optimizer, such as "weight_decay=0"
  std::string state = {};
  bool frozen = false;
};

class Session {
 public:
  explicit Session(const Options& options) {
    syncline_session* made = nullptr;
    Check(syncline_session_create(options.handle(), &made));
    handle_.reset(made);
  }

  TensorId Declare(const std::string& name, const std::vector<uint64_t>& shape,
                   float* weights, const TensorOptions& options = {}) {
    return DeclareAs(name, shape, {weights, SYNCLINE_FLOAT32}, options);
  }
  // Weights of any type, in host memory (device 0) or in that of CUDA device n - 1.
  struct Memory {
    void* data;
    syncline_dtype dtype;
    uint64_t device = 0;
  };
  TensorId DeclareAs(const std::string& name, const std::vector<uint64_t>& shape,
                     Memory weights, const TensorOptions& options = {}) {
    syncline_tensor tensor = {};
    tensor.struct_size = sizeof tensor;
    tensor.name = name.c_str();
    tensor.dimensions = static_cast<uint32_t>(shape.size());
    tensor.shape = shape.data();
    tensor.dtype = weights.dtype;
    tensor.data = weights.data;
    tensor.learning_rate_scale = options.learning_rate_scale;
    tensor.options = options.options.c_str();
    tensor.state = options.state.c_str();
    tensor.frozen = options.frozen ? 1 : 0;
    tensor.device = weights.device;
    TensorId id = 0;
    Check(syncline_declare(handle(), &tensor, &id));
    return id;
  }

  void Start(Timeout timeout = Forever()) {
    Check(syncline_start(handle(), timeout.count()));
  }
  void PushPull(TensorId tensor, const float* gradient, uint32_t samples) {
    Check(syncline_push_pull(handle(), tensor, gradient, SYNCLINE_FLOAT32, samples));
  }
  // A gradient of any type, on the device of the weights.
  struct ConstMemory {
    const void* data;
    syncline_dtype dtype;
    uint64_t device = 0;
  };
  void PushPullAs(TensorId tensor, ConstMemory gradient, uint32_t samples) {
    Check(syncline_push_pull_from(handle(), tensor, gradient.data, gradient.dtype,
                                  gradient.device, samples));
  }
  // Returns memory for one gradient that servers on this host read in place. The rules of
  // syncline_memory_new apply. It lives as long as it is referred to.
  std::shared_ptr<float> AllocateGradient(size_t elements) {
    syncline_memory* made = nullptr;
    Check(syncline_memory_new(handle(), elements, SYNCLINE_FLOAT32, &made));
    const std::shared_ptr<syncline_memory> memory(made, syncline_memory_free);
    return {memory, static_cast<float*>(syncline_memory_data(made))};
  }
  void ScaleLearningRate(TensorId tensor, double factor) {
    Check(syncline_scale_learning_rate(handle(), tensor, factor));
  }
  void Skip(const std::vector<TensorId>& tensors) {
    Check(syncline_skip(handle(), tensors.data(), tensors.size()));
  }

  void Wait(TensorId tensor, Timeout timeout = Forever()) {
    Check(syncline_wait(handle(), tensor, timeout.count()));
  }
  void WaitAll(Timeout timeout = Forever()) {
    Check(syncline_wait_all(handle(), timeout.count()));
  }
  // Afterwards the memory of its weights and gradients may be freed.
  void Undeclare(TensorId tensor) { Check(syncline_undeclare(handle(), tensor)); }
  bool IsReady(TensorId tensor) const { return syncline_is_ready(handle(), tensor) == 1; }
  void Cancel() { syncline_cancel(handle()); }
  void Uncancel() { syncline_uncancel(handle()); }
  void PullAverage(TensorId tensor, float* out, Timeout timeout = Forever()) {
    Check(syncline_pull_average(handle(), tensor, out, timeout.count()));
  }
  void Barrier(Timeout timeout = Forever()) {
    Check(syncline_barrier(handle(), timeout.count()));
  }
  void Leave() { Check(syncline_leave(handle())); }

  uint64_t step() const { return syncline_step(handle()); }
  float loss_scale() const { return syncline_loss_scale(handle()); }
  uint32_t rank() const { return syncline_rank(handle()); }
  uint32_t world_size() const { return syncline_world_size(handle()); }
  syncline_stats stats() const {
    syncline_stats stats = {};
    stats.struct_size = sizeof stats;
    Check(syncline_get_stats(handle(), &stats));
    return stats;
  }
  std::string device_codecs() const { return syncline_device_codecs(handle()); }
  void ReportLoss(uint64_t step, double loss, uint32_t samples) {
    syncline_report_loss(handle(), step, loss, samples);
  }
  bool BeginPass(syncline_pass pass) { return syncline_begin_pass(handle(), pass) == 1; }
  void EndPass() { syncline_end_pass(handle()); }
  void SaveResiduals(const std::string& path) {
    Check(syncline_save_residuals(handle(), path.c_str()));
  }
  void RestoreResiduals(const std::string& path) {
    Check(syncline_restore_residuals(handle(), path.c_str()));
  }

  syncline_session* handle() const noexcept { return handle_.get(); }

 private:
  struct Free {
    void operator()(syncline_session* session) const noexcept {
      syncline_session_free(session);
    }
  };
  std::unique_ptr<syncline_session, Free> handle_;
};

// Rounds of local SGD whose length follows this worker's speed (docs/local_sgd.md). It
// measures the time of the steps, and has a tensor of its own in the session.
//
//   syncline::AdaptiveRounds rounds("adaptive:100");
//   syncline::Session session(options);
//   ... session.Declare ...
//   rounds.Declare(session);
//   session.Start();
//   for (;;) {
//     for (uint64_t left = rounds.Begin(); left > 0; --left) ... a step ...
//     rounds.Push(session, samples);  // of the round
//     ... push the starting weights minus the present ones; wait for them ...
//     rounds.Wait(session);
//   }
//
// It must outlive the session, which writes to its memory. One thread at a time may use
// it.
class AdaptiveRounds {
 public:
  explicit AdaptiveRounds(const std::string& text) {
    syncline_rounds* made = nullptr;
    Check(syncline_rounds_new(text.c_str(), &made));
    handle_.reset(made);
  }
  AdaptiveRounds(const AdaptiveRounds&) = delete;
  AdaptiveRounds& operator=(const AdaptiveRounds&) = delete;

  // Call it once, before the session starts.
  void Declare(Session& session) {
    TensorOptions options;
    options.options = "mean=1";
    tensor_ = session.Declare("syncline.rounds", {SYNCLINE_ROUNDS_ELEMENTS}, read_.data(),
                              options);
  }

  // Begins a round and returns the number of its steps.
  uint64_t Begin() {
    steps_ = syncline_rounds_steps(handle_.get());
    began_ = std::chrono::steady_clock::now();
    return steps_;
  }
  // Ends the round's steps. `samples`: of all of them.
  void Push(Session& session, uint32_t samples) {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began_;
    if (taken.count() > 0) {
      Check(syncline_rounds_note(handle_.get(), steps_, taken.count()));
    }
    Check(syncline_rounds_write(handle_.get(), session.rank(), pushed_.data(),
                                pushed_.size()));
    session.PushPull(tensor_, pushed_.data(), samples);
  }
  void Wait(Session& session, Timeout timeout = Forever()) {
    session.Wait(tensor_, timeout);
    Check(
        syncline_rounds_read(handle_.get(), session.rank(), read_.data(), read_.size()));
  }

 private:
  struct Free {
    void operator()(syncline_rounds* rounds) const noexcept {
      syncline_rounds_free(rounds);
    }
  };
  std::unique_ptr<syncline_rounds, Free> handle_;
  TensorId tensor_ = 0;
  uint64_t steps_ = 0;
  std::chrono::steady_clock::time_point began_ = {};
  std::vector<float> read_ = std::vector<float>(SYNCLINE_ROUNDS_ELEMENTS);
  std::vector<float> pushed_ = std::vector<float>(SYNCLINE_ROUNDS_ELEMENTS);
};

}  // namespace syncline
