#include "server/service/shard_builder.h"

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"

namespace syncline {

ShardBuilder::ShardBuilder(std::vector<Engine*> engines)
    : engines_(std::move(engines)), thread_([this] { Run(); }) {}

ShardBuilder::~ShardBuilder() { Stop(); }

void ShardBuilder::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    wanted_.clear();
  }
  if (thread_.joinable()) thread_.join();
}

void ShardBuilder::Run() {
  const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !tasks_.empty();
  };
  for (;;) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

void ShardBuilder::Post(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

bool ShardBuilder::IsWanted(const Order& order) const {
  const auto found = wanted_.find(order.job);
  return found != wanted_.end() && found->second == order.serial;
}

void ShardBuilder::Build(Order order) {
  {
    absl::MutexLock lock(&mutex_);
    order.serial = ++last_serial_;
    wanted_[order.job] = order.serial;
  }
  Post([this, order = std::move(order)] { Finish(order); });
}

void ShardBuilder::Finish(const Order& order) {
  absl::Status made;
  try {
    made = Make(order);
  } catch (const std::bad_alloc&) {
    // The tables beside the large arrays did not fit.
    made = absl::ResourceExhaustedError("the server has no memory left");
  }
  {
    absl::MutexLock lock(&mutex_);
    if (!IsWanted(order)) return;  // Drop has posted the release
    if (!made.ok()) wanted_.erase(order.job);
  }
  order.done(made);
}

// Gives the engines their parts only when all parts are built.
absl::Status ShardBuilder::Make(const Order& order) {
  const auto is_dropped = [&] {
    absl::MutexLock lock(&mutex_);
    return !IsWanted(order);
  };
  const absl::Status dropped = absl::CancelledError("the job was dropped");
  if (is_dropped()) return dropped;
  std::vector<EngineJob> built;
  std::vector<EngineJobOptions> parts;
  if (order.made) {
    SYNCLINE_ASSIGN_OR_RETURN(built, order.made());
  } else {
    SYNCLINE_ASSIGN_OR_RETURN(parts, order.split());
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (is_dropped()) return dropped;
    SYNCLINE_ASSIGN_OR_RETURN(EngineJob part, engines_[i]->Build(std::move(parts[i])));
    built.push_back(std::move(part));
  }
  if (order.keep) {
    order.keep(std::move(built));
    return absl::OkStatus();
  }
  for (size_t i = 0; i < engines_.size(); ++i) {
    engines_[i]->Adopt(order.job, std::move(built[i]));
  }
  return absl::OkStatus();
}

void ShardBuilder::Drop(uint32_t job) {
  {
    absl::MutexLock lock(&mutex_);
    wanted_.erase(job);
  }
  // The memory that the engines release is freed here.
  Post([this, job] {
    for (Engine* engine : engines_) engine->Release(job);
  });
}

void ShardBuilder::DropAll() {
  {
    absl::MutexLock lock(&mutex_);
    wanted_.clear();
  }
  Post([this] {
    for (Engine* engine : engines_) engine->ReleaseAll();
  });
}

}  // namespace syncline
