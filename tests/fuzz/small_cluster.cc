#include "tests/fuzz/small_cluster.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/status.h"
#include "server/coordinator/job_record.h"
#include "server/service/event_convert.h"
#include "server/service/proto_convert.h"
#include "server/service/status_convert.h"

namespace syncline::fuzz {
namespace {

constexpr int kMaxInputs = 2000;  // that follow from one

// A message arrives only if all its texts are UTF-8.
template <typename Message>
void CheckArrives(const Message& message) {
  Message arrived;
  SYNCLINE_CHECK(arrived.ParseFromString(message.SerializeAsString()));
}

}  // namespace

SmallCluster::SmallCluster(const JobSpec& job)
    : declaration_(Declare(job)), coordinator_(NewCoordinator()) {
  Apply(Start{});
  for (const char* name : {"server1", "server2"}) {
    Say(0, ServerHello{.name = name, .shard_addresses = {"address", "another"}});
  }
  for (const uint32_t rank : {0u, 1u}) {
    Say(0, WorkerHello{.job = job.name,
                       .digest = declaration_.digest,
                       .job_bytes = declaration_.bytes->size(),
                       .rank = rank,
                       .run_id = "run",
                       .name = absl::StrCat("host:", rank)});
  }
  SYNCLINE_CHECK(epoch_ > 0);
}

std::unique_ptr<Coordinator> SmallCluster::NewCoordinator() const {
  return std::make_unique<Coordinator>(
      CoordinatorOptions{.timeouts = Timeouts::Derive(absl::Seconds(10)),
                         .expected_servers = 2,
                         .keeps_checkpoints = true});
}

void SmallCluster::Say(uint32_t who, const MemberBody& body) {
  FromMember input = {.body = body};
  auto* worker = std::get_if<WorkerHello>(&input.body);
  auto* server = std::get_if<ServerHello>(&input.body);
  if (worker != nullptr || server != nullptr) {
    input.connection = members_.size() + 1;
    members_.push_back(input.connection);
    // The shell draws them.
    if (worker != nullptr) worker->session_key = input.connection;
    if (server != nullptr && server->stand_in) server->session_key = input.connection;
  } else {
    input.connection = members_[who % members_.size()];
  }
  Apply(input);
}

void SmallCluster::Apply(const CoordinatorInput& input) {
  inputs_.push_back(input);
  for (int i = 0; !inputs_.empty(); ++i) {
    SYNCLINE_CHECK(i < kMaxInputs);
    const CoordinatorInput next = std::move(inputs_.front());
    inputs_.pop_front();
    for (const CoordinatorOutput& output : coordinator_->Apply(next, now_)) Take(output);
  }
}

void SmallCluster::PassTime(absl::Duration duration) {
  now_ += duration;
  Apply(Tick{});
}

void SmallCluster::BeatAll() {
  for (uint32_t who = 0; who < members_.size(); ++who) Say(who, Heartbeat{});
}

void SmallCluster::Restart() { SYNCLINE_CHECK(RestartFrom(stored()).ok()); }

absl::Status SmallCluster::RestartFrom(const StoredState& stored) {
  coordinator_ = NewCoordinator();
  SYNCLINE_RETURN_IF_ERROR(coordinator_->Restore(stored, WireDeclarations()));
  Apply(Start{});
  return absl::OkStatus();
}

void SmallCluster::CheckView() const {
  v1::StatusReply reply = ToProto(coordinator_->View(now_));
  AppendEvents(events_.Latest(100), reply);
  CheckArrives(reply);
}

void SmallCluster::Take(const CoordinatorOutput& output) {
  if (const auto* message = std::get_if<ToMember>(&output)) Hear(*message);
  if (const auto* prepare = std::get_if<Prepare>(&output)) {
    inputs_.emplace_back(CarryOut(prepare->order, WireDeclarations()));
  }
  if (const auto* order = std::get_if<CheckpointOrder>(&output)) Answer(*order);
  if (const auto* persist = std::get_if<PersistState>(&output)) state_ = persist->state;
  if (const auto* record = std::get_if<StoreRecord>(&output)) Store(*record);
  if (const auto* event = std::get_if<CoordinatorEvent>(&output)) {
    events_.Add(*event);
    for (const StoreRecord& record : events_.Changes()) {
      if (record.value == nullptr) continue;
      SYNCLINE_CHECK(EventLog().Restore(record.key, *record.value).ok());
    }
    events_.Show();
  }
}

void SmallCluster::Hear(const ToMember& message) {
  SharedBytes shared;
  CheckArrives(ToProto(message.body, shared));
  const auto answer = [&](MemberBody body) {
    inputs_.emplace_back(FromMember{message.connection, std::move(body)});
  };
  if (const auto* describe = std::get_if<DescribeJob>(&message.body)) {
    if (describe->digest == declaration_.digest) {
      answer(JobDeclaration{declaration_.bytes});
    }
  } else if (const auto* configure = std::get_if<ConfigureJob>(&message.body)) {
    job_ = configure->job;
    answer(JobConfigured{configure->job});
  } else if (const auto* prepare = std::get_if<PrepareEpoch>(&message.body)) {
    answer(EpochPrepared{prepare->job, prepare->epoch});
  } else if (const auto* commit = std::get_if<CommitEpoch>(&message.body)) {
    epoch_ = commit->epoch;
    answer(EpochCommitted{commit->job, commit->epoch});
  } else if (const auto* hold = std::get_if<HoldBackup>(&message.body)) {
    members_.push_back(members_.size() + 1);
    const ServerHello hello = {
        .name = absl::StrCat("backup", hold->order),
        .shard_addresses = std::vector<std::string>(hold->engines, "address"),
        .stand_in = StandInFor{hold->job, hold->server, hold->order},
        .session_key = members_.back()};
    inputs_.emplace_back(FromMember{members_.back(), hello});
  } else if (const auto* welcome = std::get_if<WorkerWelcome>(&message.body)) {
    session_key_ = welcome->session_key;
  }
}

void SmallCluster::Answer(const CheckpointOrder& order) {
  if (const auto* find = std::get_if<FindCheckpoint>(&order)) {
    inputs_.emplace_back(CheckpointAnswer(CheckpointFound{find->job, Beginning()}));
  } else if (const auto* keep = std::get_if<KeepCheckpoint>(&order)) {
    SYNCLINE_CHECK(!WriteManifest(keep->manifest).empty());
    inputs_.emplace_back(
        CheckpointAnswer(CheckpointKept{.job = keep->job, .name = keep->manifest.name}));
  } else if (const auto* settle = std::get_if<SettleCheckpoints>(&order)) {
    inputs_.emplace_back(CheckpointAnswer(CheckpointsSettled{settle->job}));
  }
}

void SmallCluster::Store(const StoreRecord& record) {
  records_.erase(record.key);
  if (record.value == nullptr) return;
  records_[record.key] = *record.value;
  if (absl::EndsWith(record.key, "/declaration")) return;
  const absl::StatusOr<JobRecord> read = ParseJobRecord(*record.value);
  SYNCLINE_CHECK(read.ok());
  SYNCLINE_CHECK(WriteJobRecord(*read) == *record.value);
}

}  // namespace syncline::fuzz
