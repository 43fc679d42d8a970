// The hello of a server, and what it repeats to a restarted coordinator.
#include <utility>
#include <variant>

#include "server/journal/run.h"
#include "server/service/proto_convert.h"
#include "server/service/server_node.h"

namespace syncline {

ServerHello ServerNode::MakeHello() const {
  ServerHello hello = {.name = options_.name,
                       .lanes = std::string(DescribeMode(options_.plan.mode)),
                       .lanes_because = options_.plan.because,
                       .memory_bytes = options_.memory_bytes};
  hello.stand_in = options_.stand_in;
  hello.feeds_two_backups = true;
  for (const auto& engine : engines_) hello.shard_addresses.push_back(engine->address());
  if (!options_.journal_directory.empty() && !options_.stand_in) {
    for (RunOnDisk& run : ListRuns(options_.journal_directory)) {
      hello.journals.push_back({std::move(run.job), std::move(run.run),
                                std::move(run.shards), std::move(run.generations)});
    }
  }
  absl::MutexLock lock(&mutex_);
  hello.identity = machine_.identity();
  hello.held = machine_.Held();
  for (HeldJob& held : hello.held) {
    if (journal_ != nullptr) held.run = journal_->RunOf(held.job);
  }
  return hello;
}

v1::MemberMessage ServerNode::HelloMessage() const {
  v1::MemberMessage hello = ToProto(MakeHello());
  hello.mutable_server_hello()->set_protocol_version(kProtocolVersion);
  hello.mutable_server_hello()->set_build_version(SYNCLINE_VERSION);
  hello.mutable_server_hello()->set_failure_timeout_ms(static_cast<uint32_t>(
      absl::ToInt64Milliseconds(options_.timeouts.failure_timeout)));
  return hello;
}

v1::MemberMessage ServerNode::HelloAgain() {
  v1::MemberMessage hello = HelloMessage();
  absl::MutexLock lock(&mutex_);
  // The present state of journals is among what is repeated.
  std::erase_if(outbox_, [](const MemberBody& said) {
    return std::holds_alternative<JournalLost>(said) ||
           std::holds_alternative<JournalWhole>(said);
  });
  for (MemberBody& said : machine_.Unanswered()) outbox_.push_back(std::move(said));
  changed_.SignalAll();
  return hello;
}

}  // namespace syncline
