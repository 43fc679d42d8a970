#include "server/service/checkpoint_keeper.h"

#include <string>
#include <utility>
#include <variant>

namespace syncline {
namespace {

// NFS caches the contents of a folder for up to a minute (acdirmax).
constexpr int kLooks = 60;
constexpr absl::Duration kBetweenLooks = absl::Seconds(1);

}  // namespace

CheckpointKeeper::CheckpointKeeper(BlobStore& store, Logger log,
                                   std::function<void(CheckpointAnswer)> done)
    : store_(store),
      log_(std::move(log)),
      done_(std::move(done)),
      thread_([this] { Run(); }) {}

CheckpointKeeper::~CheckpointKeeper() { Stop(); }

void CheckpointKeeper::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void CheckpointKeeper::Order(CheckpointOrder order) {
  absl::MutexLock lock(&mutex_);
  orders_.push_back(std::move(order));
}

void CheckpointKeeper::Run() {
  const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !orders_.empty();
  };
  for (;;) {
    CheckpointOrder order;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (orders_.empty()) return;
      order = std::move(orders_.front());
      orders_.pop_front();
    }
    std::visit([this](const auto& what) { CarryOut(what); }, order);
  }
}

void CheckpointKeeper::CarryOut(const FindCheckpoint& order) {
  absl::StatusOr<Beginning> beginning = FindBeginning(store_, order.name, order.resume);
  if (beginning.ok()) {
    const absl::StatusOr<uint32_t> run = ClaimRun(store_, order.name, beginning->run);
    if (run.ok()) {
      beginning->run = *run;
    } else {
      beginning = run.status();
    }
  }
  done_(CheckpointFound{.job = order.job, .beginning = std::move(beginning)});
}

void CheckpointKeeper::CarryOut(const KeepCheckpoint& order) {
  Manifest manifest = order.manifest;
  for (const TensorSpec& tensor : order.declared->spec.tensors) {
    manifest.tensors.push_back(
        {.name = tensor.name, .shape = tensor.shape, .frozen = tensor.group.frozen});
  }
  absl::Status put = AwaitParts(manifest);
  if (put.ok()) put = PutManifest(store_, manifest);
  done_(CheckpointKept{.job = order.job, .name = manifest.name, .status = put});
  if (!put.ok()) return;
  const absl::Status retained = Retain(store_, manifest.job, manifest.name, order.keep);
  if (retained.ok()) return;
  log_.Warning("earlier checkpoints could not be deleted",
               {{"job", manifest.job}, {"error", std::string(retained.message())}});
}

absl::Status CheckpointKeeper::AwaitParts(const Manifest& manifest) {
  for (int look = 1;; ++look) {
    const absl::Status there = CheckParts(store_, manifest);
    // If a bucket does not answer, its client has already tried for minutes.
    const bool may_come = !absl::IsUnavailable(there);
    if (there.ok() || !may_come || look == kLooks) return there;
    absl::MutexLock lock(&mutex_);
    const absl::Duration next = clock_.Now() + kBetweenLooks;
    while (!stopping_ && changed_.WaitUntil(mutex_, clock_, next)) {
    }
    if (stopping_) return there;
  }
}

void CheckpointKeeper::CarryOut(const DiscardCheckpoint& order) {
  const absl::Status gone = DeleteCheckpoint(store_, order.job, order.name);
  if (gone.ok()) return;
  log_.Warning("a checkpoint that failed could not be deleted",
               {{"job", order.job},
                {"checkpoint", order.name.ToString()},
                {"error", std::string(gone.message())}});
}

}  // namespace syncline
