#include "comm/rpc/attach_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/status.h"
#include "comm/rpc/timeouts.h"

namespace syncline {

absl::StatusOr<std::unique_ptr<AttachStream>> AttachStream::Open(
    const AttachOptions& options, AttachCallbacks callbacks) {
  std::unique_ptr<AttachStream> self(new AttachStream);
  SYNCLINE_ASSIGN_OR_RETURN(
      self->channel_,
      CreateChannel(options.address, options.tls, RpcTimeouts::From(options.timeouts)));
  if (!self->channel_->WaitForConnected(DeadlineIn(options.connect_timeout))) {
    return UnreachableError(options.address, options.connect_timeout, "no connection");
  }
  self->stub_ = v1::Coordinator::NewStub(self->channel_);
  self->stream_ = self->stub_->Attach(&self->context_);
  self->reader_ = std::thread([stream = self.get(), callbacks = std::move(callbacks)] {
    stream->Read(callbacks);
  });
  return self;
}

AttachStream::~AttachStream() { Close(); }

void AttachStream::Read(const AttachCallbacks& callbacks) {
  v1::CoordinatorMessage message;
  while (stream_->Read(&message)) callbacks.on_message(message);
  bool closing = false;
  {
    absl::MutexLock lock(&mutex_);
    writable_ = false;
    closing = closing_;
  }
  const absl::Status status = FromGrpcStatus(stream_->Finish());
  if (!closing) callbacks.on_end(status);
  absl::MutexLock lock(&mutex_);
  ended_ = true;
  changed_.SignalAll();
}

bool AttachStream::Send(const v1::MemberMessage& message) {
  absl::MutexLock writing(&write_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    if (!writable_) return false;
  }
  if (stream_->Write(message)) return true;
  absl::MutexLock lock(&mutex_);
  writable_ = false;
  return false;
}

void AttachStream::Close(absl::Duration grace) {
  if (!reader_.joinable()) return;
  bool may_write = false;
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    may_write = std::exchange(writable_, false);
  }
  // A thread that is inside Send may wait long for the network.
  if (may_write && write_mutex_.TryLock()) {
    stream_->WritesDone();
    write_mutex_.Unlock();
  }
  {
    absl::MutexLock lock(&mutex_);
    const SteadyClock clock;
    while (!ended_ && changed_.WaitUntil(mutex_, clock, grace)) {
    }
  }
  context_.TryCancel();
  reader_.join();
}

}  // namespace syncline
