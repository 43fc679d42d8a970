#include "cli/bench/control_member.h"

#include <utility>

#include "comm/rpc/status.h"

namespace syncline {

void ControlTraffic::Count(const google::protobuf::Message& message) {
  const auto* field = message.GetReflection()->GetOneofFieldDescriptor(
      message, message.GetDescriptor()->oneof_decl(0));
  const std::string name = field == nullptr ? "empty" : field->name();
  const uint64_t bytes = message.ByteSizeLong();
  absl::MutexLock lock(&mutex_);
  Kind& kind = kinds_[name];
  ++kind.messages;
  kind.bytes += bytes;
}

void ControlTraffic::Reset() {
  absl::MutexLock lock(&mutex_);
  kinds_.clear();
}

nlohmann::json ControlTraffic::Report() const {
  absl::MutexLock lock(&mutex_);
  Kind all;
  nlohmann::json kinds = nlohmann::json::object();
  for (const auto& [name, kind] : kinds_) {
    kinds[name] = {{"messages", kind.messages}, {"bytes", kind.bytes}};
    all.messages += kind.messages;
    all.bytes += kind.bytes;
  }
  return {{"messages", all.messages}, {"bytes", all.bytes}, {"kinds", std::move(kinds)}};
}

void ControlMember::Start(v1::Coordinator::Stub& stub, v1::MemberMessage hello) {
  stub.async()->Attach(&context_, this);
  AddHold();  // other threads call Say
  StartRead(&incoming_);
  {
    absl::MutexLock lock(&mutex_);
    is_started_ = true;
    SayLocked(std::move(hello));
  }
  StartCall();
}

void ControlMember::Say(v1::MemberMessage message) {
  absl::MutexLock lock(&mutex_);
  if (is_started_ && !ended_) SayLocked(std::move(message));
}

void ControlMember::SayLocked(v1::MemberMessage message) {
  events_.sent->Count(message);
  outgoing_.push_back(std::move(message));
  if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
}

void ControlMember::OnReadDone(bool ok) {
  if (!ok) {
    {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    }
    RemoveHold();
    return;
  }
  events_.received->Count(incoming_);
  Answer(incoming_);
  events_.on_message(incoming_);
  StartRead(&incoming_);
}

void ControlMember::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  outgoing_.pop_front();
  if (!ok || ended_) return outgoing_.clear();
  if (!outgoing_.empty()) StartWrite(&outgoing_.front());
}

void ControlMember::OnDone(const grpc::Status& status) {
  events_.on_end(FromGrpcStatus(status));
}

// Answers requests. Workers get only the first kind, servers all others.
void ControlMember::Answer(const v1::CoordinatorMessage& message) {
  v1::MemberMessage answer;
  if (message.has_describe_job() && events_.declaration != nullptr) {
    answer = *events_.declaration;
  } else if (message.has_configure_job()) {
    answer.mutable_job_configured()->set_job(message.configure_job().job());
  } else if (message.has_prepare_epoch()) {
    answer.mutable_epoch_prepared()->set_job(message.prepare_epoch().job());
    answer.mutable_epoch_prepared()->set_epoch(message.prepare_epoch().epoch());
  } else if (message.has_commit_epoch()) {
    answer.mutable_epoch_committed()->set_job(message.commit_epoch().job());
    answer.mutable_epoch_committed()->set_epoch(message.commit_epoch().epoch());
  } else {
    return;
  }
  Say(std::move(answer));
}

}  // namespace syncline
