// What a server says first, and what it says again to a coordinator that was started anew.
#include <utility>

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
  for (const auto& engine : engines_) hello.shard_addresses.push_back(engine->address());
  if (!options_.journal_directory.empty() && !options_.stand_in) {
    for (RunOnDisk& run : ListRuns(options_.journal_directory)) {
      hello.journals.push_back({std::move(run.job), std::move(run.run),
                                std::move(run.shards), std::move(run.generations)});
    }
  }
  absl::MutexLock lock(&mutex_);
  hello.identity = identity_;
  for (const auto& [id, job] : jobs_) {
    hello.held.push_back(job.memory.Describe(id));
    if (journal_ != nullptr) hello.held.back().run = journal_->RunOf(id);
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
  for (const auto& [id, job] : jobs_) {
    for (BlockFigures& figures : job.memory.undecided()) {
      outbox_.emplace_back(std::move(figures));
    }
    for (StepHeld& held : job.memory.unclosed()) outbox_.emplace_back(std::move(held));
  }
  SayJournals();
  changed_.SignalAll();
  return hello;
}

}  // namespace syncline
