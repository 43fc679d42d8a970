#include "server/service/awaited_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

// How often AwaitFirst calls `gives_up`.
constexpr absl::Duration kBetweenQuestions = absl::Milliseconds(50);

}  // namespace

AwaitedStore::AwaitedStore(AwaitedStoreOptions options)
    : options_(std::move(options)),
      thread_([this] { Run(); }),
      on_end_(options_.ends, [this] { Close(); }) {}

AwaitedStore::~AwaitedStore() {
  Close();
  thread_.join();
}

void AwaitedStore::Close() {
  absl::MutexLock lock(&mutex_);
  closing_ = true;
  changed_.SignalAll();
}

std::optional<absl::Status> AwaitedStore::AwaitFirst(
    absl::Duration limit, const std::function<bool()>& gives_up) {
  absl::MutexLock lock(&mutex_);
  const absl::Duration end = clock_.Now() + limit;
  while (!status_ && clock_.Now() < end && !gives_up()) {
    const absl::Duration next = std::min(end, clock_.Now() + kBetweenQuestions);
    (void)changed_.WaitUntil(mutex_, clock_, next);
  }
  return status_;
}

bool AwaitedStore::Pause(absl::Duration pause) {
  absl::MutexLock lock(&mutex_);
  const absl::Duration end = clock_.Now() + pause;
  while (!closing_ && changed_.WaitUntil(mutex_, clock_, end)) {
  }
  return !closing_;
}

void AwaitedStore::Run() {
  const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return closing_ || !status_ || !status_->ok();
  };
  absl::Duration pause = options_.first_pause;
  std::optional<absl::StatusCode> said;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (closing_) return;
    }
    absl::StatusOr<std::unique_ptr<BlobStore>> opened = options_.open();
    const absl::Status status = opened.status();
    {
      absl::MutexLock lock(&mutex_);
      if (closing_) return;
      // Others may be using the first store that was opened, so it is never replaced.
      if (status.ok() && store_ == nullptr) store_ = *std::move(opened);
      status_ = status;
      changed_.SignalAll();
    }
    if (std::exchange(said, status.code()) != status.code()) options_.on_change(status);
    if (status.ok()) {
      pause = options_.first_pause;
      continue;
    }
    if (!Pause(pause)) return;
    pause = std::min(2 * pause, options_.longest_pause);
  }
}

absl::StatusOr<BlobStore*> AwaitedStore::Opened() {
  absl::MutexLock lock(&mutex_);
  const absl::Duration end = clock_.Now() + options_.patience;
  // An error that an operator must correct does not pass by waiting.
  const auto may_pass = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !status_ || absl::IsUnavailable(*status_);
  };
  while (!closing_ && may_pass() && changed_.WaitUntil(mutex_, clock_, end)) {
  }
  if (!status_) {
    return absl::UnavailableError(
        absl::StrCat(options_.where, " has not answered yet; asking it again"));
  }
  if (!status_->ok()) return *status_;
  return store_.get();
}

absl::Status AwaitedStore::Noted(absl::Status status) {
  if (!absl::IsUnavailable(status)) return status;
  absl::MutexLock lock(&mutex_);
  if (!status_ || status_->ok()) status_ = status;
  return status;
}

// Notes that the store is away when a write fails because of that.
class AwaitedStore::NotedWriter final : public BlobWriter {
 public:
  NotedWriter(AwaitedStore& store, std::unique_ptr<BlobWriter> writer)
      : store_(store), writer_(std::move(writer)) {}

  absl::Status Append(ByteView bytes) override {
    return store_.Noted(writer_->Append(bytes));
  }
  absl::Status Finish(ByteView head) override {
    return store_.Noted(writer_->Finish(head));
  }

 private:
  AwaitedStore& store_;
  const std::unique_ptr<BlobWriter> writer_;
};

absl::StatusOr<std::vector<Blob>> AwaitedStore::List(const std::string& folder) {
  SYNCLINE_ASSIGN_OR_RETURN(BlobStore* const store, Opened());
  auto blobs = store->List(folder);
  if (!blobs.ok()) return Noted(blobs.status());
  return blobs;
}

absl::Status AwaitedStore::Read(const std::string& name, uint64_t offset,
                                MutableByteView out) {
  SYNCLINE_ASSIGN_OR_RETURN(BlobStore* const store, Opened());
  return Noted(store->Read(name, offset, out));
}

absl::StatusOr<std::unique_ptr<BlobWriter>> AwaitedStore::Create(const std::string& name,
                                                                 size_t head_bytes) {
  SYNCLINE_ASSIGN_OR_RETURN(BlobStore* const store, Opened());
  auto writer = store->Create(name, head_bytes);
  if (!writer.ok()) return Noted(writer.status());
  return std::make_unique<NotedWriter>(*this, *std::move(writer));
}

absl::Status AwaitedStore::Claim(const std::string& name) {
  SYNCLINE_ASSIGN_OR_RETURN(BlobStore* const store, Opened());
  return Noted(store->Claim(name));
}

absl::Status AwaitedStore::Delete(const std::string& name) {
  SYNCLINE_ASSIGN_OR_RETURN(BlobStore* const store, Opened());
  return Noted(store->Delete(name));
}

}  // namespace syncline
