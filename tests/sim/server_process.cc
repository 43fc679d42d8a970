#include "tests/sim/server_process.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/job_seed.h"
#include "comm/base/status.h"
#include "server/journal/record_player.h"

namespace syncline::sim {
namespace {

// As an engine does.
constexpr absl::Duration kPumpPeriod = absl::Milliseconds(10);

// NaN is NaN: floats are compared as bytes.
template <typename Number>
bool SameBytes(const std::vector<Number>& a, const std::vector<Number>& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

bool SameBits(const BlockSnapshot& a, const BlockSnapshot& b) {
  return a.version == b.version && a.updates == b.updates && a.seeded == b.seeded &&
         SameBytes(a.weights, b.weights) && SameBytes(a.view, b.view) &&
         SameBytes(a.accumulator, b.accumulator) &&
         a.accumulated_samples == b.accumulated_samples &&
         a.accumulated_parting_samples == b.accumulated_parting_samples &&
         a.rate_factor == b.rate_factor && a.state == b.state;
}

bool SameBits(const ShardSnapshot& a, const ShardSnapshot& b) {
  const auto is_same_block = [](const auto& one, const auto& other) {
    return one.first == other.first && SameBits(one.second, other.second);
  };
  const auto is_same_factor = [](const auto& one, const auto& other) {
    return one.first == other.first && SameBytes(one.second, other.second);
  };
  return std::ranges::equal(a.blocks, b.blocks, is_same_block) &&
         std::ranges::equal(a.factors, b.factors, is_same_factor) &&
         SameBytes(a.job_memory, b.job_memory) && a.loss_scale == b.loss_scale;
}

}  // namespace

ServerProcess::ServerProcess(Parts parts, std::string name)
    : parts_(std::move(parts)),
      name_(std::move(name)),
      pool_(size_t{1} << 20),
      transport_(parts_.network.CreateTransport(*this)),
      random_(parts_.seed),
      session_key_(random_()) {
  Attach();
  parts_.control.Send(connection_, MakeHello());
  Beat();
  PumpAll();
}

void ServerProcess::Attach() {
  connection_ = parts_.control.Attach(
      {.on_message = [this](const CoordinatorBody& body) { OnControl(body); },
       // The one before it is still taken for alive.
       .on_end =
           [this](const absl::Status&) {
             if (parts_.stand_in) return EndStandIn();
             SYNCLINE_CHECK(!identity_);
             After(parts_.heartbeat_interval, [this] { OnLost(); });
           },
       .on_lost = [this] { OnLost(); }});
}

void ServerProcess::After(absl::Duration delay, std::function<void()> fn) {
  parts_.events.After(delay, [alive = alive_, fn = std::move(fn)] {
    if (*alive) fn();
  });
}

void ServerProcess::Kill() {
  *alive_ = false;
  parts_.control.Break(connection_);
  parts_.network.Kill(transport_->address());
  Disk& disk = parts_.disk;
  const size_t lost = disk.records.size() - disk.synced;
  disk.records.resize(disk.synced +
                      std::uniform_int_distribution<size_t>(0, lost)(random_));
}

// ---- Its disk ----

void ServerProcess::Keep(std::shared_ptr<const ShardRecord> record) {
  parts_.disk.records.push_back(std::move(record));
  if (records_ == nullptr) {
    // Nothing waits for those of one whose backup is lost, or that took over.
    if (!parts_.disk.job.empty()) SyncSoon();
    return;
  }
  records_->Take(*parts_.disk.records.back());
  if (parts_.fault == Fault::kPublishesEarly) {
    After(absl::ZeroDuration(), [this, taken = parts_.disk.records.size()] {
      if (shard_ != nullptr) Run(ShardDurable{taken});
    });
  }
}

// One after the other, each for all that came meanwhile.
void ServerProcess::SyncSoon() {
  if (std::exchange(syncs_, true)) return;
  const auto taken = parts_.disk.records.size();
  const int micros = std::uniform_int_distribution<int>(10, 20000)(random_);
  After(absl::Microseconds(micros), [this, taken] {
    syncs_ = false;
    parts_.disk.synced = taken;
    if (shard_ != nullptr) Run(ShardDurable{taken - begun_at_});
    if (parts_.disk.records.size() > taken) SyncSoon();
  });
}

absl::StatusOr<uint64_t> ServerProcess::Restore() {
  std::vector<std::shared_ptr<const ShardRecord>>& records = parts_.disk.records;
  RecordPlayer player(*shard_, {.records = "what is left", .whose = "what was"});
  size_t whole = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    SYNCLINE_RETURN_IF_ERROR(player.Take(*records[i]));
    if (player.is_whole()) whole = i + 1;
  }
  records.resize(whole);
  parts_.disk.synced = begun_at_ = whole;
  shard_->BeginAgain();
  uint64_t lowest = ~uint64_t{0};
  for (const ShardBlock& block : blocks_) {
    const uint64_t version = shard_->block_version(block.block);
    parts_.on_restored(block.block, version);
    const bool is_frozen = options_.tensors[block.range.tensor].group.frozen;
    if (!is_frozen) lowest = std::min(lowest, version);
  }
  return lowest;
}

// As ServerNode does.
void ServerProcess::OnLost() {
  Attach();
  parts_.control.Send(connection_, MakeHello());
  for (const BlockFigures& figures : memory_.undecided()) {
    parts_.control.Send(connection_, figures);
  }
  for (const StepHeld& held : memory_.unclosed()) parts_.control.Send(connection_, held);
}

ServerHello ServerProcess::MakeHello() const {
  ServerHello hello = {.name = name_,
                       .shard_addresses = {transport_->address()},
                       .lanes = "inproc",
                       .identity = identity_};
  hello.stand_in = parts_.stand_in;
  hello.session_key = session_key_;
  if (shard_ != nullptr) hello.held.push_back(memory_.Describe(job_));
  if (!parts_.disk.job.empty()) {
    if (shard_ != nullptr) hello.held.back().run = "run";
    hello.journals.push_back({parts_.disk.job, "run", {parts_.disk.shard}});
  }
  return hello;
}

void ServerProcess::Beat() {
  Heartbeat beat{.step = 0, .bytes = bytes_};
  if (shard_ != nullptr) beat.jobs.push_back(Progress());
  parts_.control.Send(connection_, std::move(beat));
  After(parts_.heartbeat_interval, [this] { Beat(); });
}

JobProgress ServerProcess::Progress() {
  for (const auto& [life, link] : workers_) {
    shard_->Crossed(life.first, life.second, link->TakeCrossedBytes());
  }
  const ShardProgress shard = shard_->Progress();
  JobProgress progress{.job = job_,
                       .step = shard.step,
                       .trained = shard.trained,
                       .undecided = shard.undecided,
                       .unseeded = shard.unseeded,
                       .completed = shard.completed};
  if (records_ != nullptr) progress.backup_bytes = records_->progress().bytes;
  for (const ShardProgress::Member& member : shard.members) {
    progress.members.push_back(
        {member.rank, member.owed, member.waits, member.contributed, member.moved});
  }
  return progress;
}

void ServerProcess::OnControl(const CoordinatorBody& body) {
  if (const auto* configure = std::get_if<ConfigureJob>(&body)) BuildSoon(*configure);
  if (const auto* welcome = std::get_if<ServerWelcome>(&body)) {
    identity_ = {welcome->server, welcome->incarnation};
  }
  const auto* drop = std::get_if<DropJob>(&body);
  if (drop != nullptr && drop->job == building_) building_.reset();
  if (drop != nullptr && drop->job == job_) {
    shard_.reset();
    workers_.clear();
    records_.reset();
    pair_.reset();
    return;
  }
  OnBackup(body);
  if (const auto* prepare = std::get_if<PrepareEpoch>(&body)) {
    memory_.Prepare(prepare->epoch);
    Run(ShardPrepare{prepare->epoch});
  }
  if (const auto* commit = std::get_if<CommitEpoch>(&body)) {
    ShardCommit input{.epoch = commit->epoch,
                      .training = commit->training,
                      .training_from = commit->training_from};
    for (const MemberRecord& member : commit->members) {
      input.members.push_back(
          {member.rank, member.incarnation, member.first_step, member.session_key});
    }
    Run(input);
  }
  if (const auto* closed = std::get_if<StepClosed>(&body)) {
    memory_.Close(*closed);
    Run(ShardClosed{closed->step, closed->incarnations});
  }
  if (const auto* decision = std::get_if<StepDecision>(&body)) {
    memory_.Decide(*decision);
    const Decision& what = decision->decision;
    Run(ShardDecision{.step = decision->step,
                      .gradient_scale = what.gradient_scale,
                      .verdict = what.skip ? ShardDecision::Verdict::kSkip
                                           : ShardDecision::Verdict::kApply,
                      .loss_scale = what.loss_scale,
                      .figures = what.figures});
  }
}

// The memory of a job takes time, and what is said of the job meanwhile finds nothing.
void ServerProcess::BuildSoon(const ConfigureJob& configure) {
  building_ = configure.job;
  const int micros = std::uniform_int_distribution<int>(10, 30000)(random_);
  After(absl::Microseconds(micros), [this, configure] {
    if (building_ == configure.job) Configure(configure);
  });
}

void ServerProcess::Configure(const ConfigureJob& configure) {
  job_ = configure.job;
  memory_ = {};
  owned_.clear();
  const JobSpec& spec = configure.declared->spec;
  const std::vector<BlockRange> ranges = spec.Blocks();
  blocks_.clear();
  for (uint32_t block = 0; block < ranges.size(); ++block) {
    if (configure.placement->shard_of_block[block] != configure.first_shard) continue;
    owned_.insert(block);
    blocks_.push_back({block, ranges[block]});
  }
  options_ = ShardOptions{
      .job = job_,
      .seed = JobSeed(spec.name),
      .shard = configure.first_shard,
      .transfers = *spec.Transfers(),
      .seed_codec = *parts_.codecs.Find(CodecId::kFp32),
      .training = spec.training,
      .tensors = spec.Trained(),
      .checksum = Checksum::kHeaderAndPayload,
      .records = spec.IsJournaled() || (spec.HasBackups() && !configure.backup)
                     ? Records::kAwaited
                     : Records::kKept};
  pair_ = configure.backup;
  if (spec.HasBackups() && !pair_) records_ = std::make_unique<RecordSender>();
  shard_ = *Shard::Create(options_, blocks_, pool_);
  workers_.clear();
  uint64_t step = 0;
  if (configure.restore_run.empty()) {
    parts_.disk = {};
    if (spec.IsJournaled()) parts_.disk = {.job = spec.name, .shard = options_.shard};
    begun_at_ = 0;
  } else {
    const absl::StatusOr<uint64_t> restored = Restore();
    SYNCLINE_CHECK(restored.ok());
    step = *restored;
  }
  parts_.control.Send(connection_, JobConfigured{job_, step});
}

void ServerProcess::Run(const ShardInput& input) {
  SYNCLINE_CHECK(shard_ != nullptr);
  for (const ShardOutput& output : shard_->Apply(input)) Perform(output);
}

void ServerProcess::Perform(const ShardOutput& output) {
  if (const auto* reply = std::get_if<ShardReply>(&output)) Reply(*reply);
  if (const auto* prepared = std::get_if<ShardPrepared>(&output)) {
    parts_.control.Send(connection_,
                        EpochPrepared{job_, prepared->epoch, prepared->next_step});
  }
  if (const auto* committed = std::get_if<ShardCommitted>(&output)) {
    memory_.Commit(committed->epoch);
    parts_.control.Send(
        connection_,
        EpochCommitted{job_, committed->epoch, parts_.disk.job.empty() ? "" : "run"});
  }
  if (const auto* figures = std::get_if<ShardFigures>(&output)) {
    const BlockFigures report = {job_, figures->block, figures->step, figures->figures};
    memory_.Report(report);
    parts_.control.Send(connection_, report);
  }
  if (const auto* held = std::get_if<ShardHeld>(&output)) {
    const StepHeld report = {job_, options_.shard, held->step, held->incarnations};
    memory_.Hold(report);
    parts_.control.Send(connection_, report);
  }
  if (const auto* applied = std::get_if<ShardApplied>(&output))
    parts_.reference.Applied(*applied);
  if (const auto* recorded = std::get_if<ShardRecorded>(&output)) {
    Keep(recorded->record);
  }
  if (const auto* backed_up = std::get_if<ShardBackedUp>(&output)) OnBackedUp(*backed_up);
}

absl::Status ServerProcess::CheckRecords() {
  if (!has_all_records_) return absl::OkStatus();
  options_.records = Records::kNone;
  const std::unique_ptr<Shard> replayed = *Shard::Create(options_, blocks_, pool_);
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> digests;  // by block and version
  for (const auto& record : parts_.disk.records) {
    SYNCLINE_ASSIGN_OR_RETURN(const ShardOutputs outputs, replayed->Replay(*record));
    if (const auto* step = std::get_if<StepRecord>(&record->what)) {
      digests[{step->block, step->step}] = step->digest;
    }
    for (const ShardOutput& output : outputs) {
      const auto* applied = std::get_if<ShardApplied>(&output);
      if (applied == nullptr) continue;
      const uint32_t digest = digests.at({applied->block, applied->step});
      if (replayed->block_digest(applied->block) == digest) continue;
      return absl::InternalError(absl::StrCat("replayed, block ", applied->block,
                                              " is another one after step ",
                                              applied->step));
    }
  }
  return Compare(*replayed);
}

absl::Status ServerProcess::Compare(const Shard& replayed) const {
  for (const ShardBlock& block : blocks_) {
    const bool is_same =
        replayed.block_version(block.block) == shard_->block_version(block.block) &&
        replayed.block_digest(block.block) == shard_->block_digest(block.block);
    if (is_same) continue;
    return absl::InternalError(
        absl::StrCat("replayed, block ", block.block, " is another one at the end"));
  }
  const auto expected = shard_->Save();
  const auto got = replayed.Save();
  // Somebody may have pushed what nobody waits for.
  if (!expected.ok()) return absl::OkStatus();
  const bool is_same = got.ok() && SameBits(*got, *expected);
  return is_same ? absl::OkStatus()
                 : absl::InternalError("replayed, the optimizer's state is another one");
}

void ServerProcess::Reply(const ShardReply& reply) {
  const WorkerLife life = {reply.rank, reply.incarnation};
  const auto worker = workers_.find(life);
  if (worker != workers_.end() && worker->second->Send(reply)) Pump(life);
}

void ServerProcess::Pump(WorkerLife life) {
  const auto worker = workers_.find(life);
  if (worker == workers_.end()) return;
  worker->second->Pump(parts_.events.now(), [this](const MessageHeader& question) {
    Run(ShardMessage{question, {}});
  });
}

void ServerProcess::PumpAll() {
  for (const auto& [life, link] : workers_) Pump(life);
  After(kPumpPeriod, [this] { PumpAll(); });
}

void ServerProcess::TakeHello(const MessageHeader& header, const Buffer& payload) {
  const WorkerLife life = {header.rank, header.incarnation};
  const ShardMember* member = shard_->FindMember(life.first, life.second);
  if (member == nullptr || member->session_key != header.session_key) return;
  const uint64_t connection = next_connection_++;
  const std::string address(reinterpret_cast<const char*>(payload.data()),
                            payload.size());
  const auto on_failure = [this, life, connection](const absl::Status&) {
    After(absl::ZeroDuration(), [this, life, connection] { Forget(life, connection); });
  };
  std::unique_ptr<Endpoint> endpoint =
      *transport_->Connect(address, {.on_failure = on_failure});
  workers_[life] = std::make_unique<WorkerLink>(
      WorkerLink::Parts{.endpoint = std::move(endpoint),
                        .number = connection,
                        .shard = shard_,
                        .sent = [this, life, alive = alive_] {
                          if (*alive) Pump(life);
                        }});
  workers_[life]->Welcome(header);
}

void ServerProcess::TakeQuestion(const MessageHeader& header) {
  if (shard_->Check(header) != RefuseCode::kNone) return Run(ShardMessage{header, {}});
  const WorkerLife life = {header.rank, header.incarnation};
  const auto worker = workers_.find(life);
  if (worker == workers_.end()) return;
  worker->second->Ask(header);
  Pump(life);
}

void ServerProcess::Forget(WorkerLife life, uint64_t connection) {
  const auto worker = workers_.find(life);
  if (worker != workers_.end() && worker->second->number() == connection) {
    workers_.erase(worker);
  }
}

absl::StatusOr<Buffer> ServerProcess::Allocate(ByteView header, size_t payload_bytes) {
  SYNCLINE_ASSIGN_OR_RETURN(const MessageHeader parsed, ParseHeader(header));
  if (shard_ == nullptr) return absl::NotFoundError("no job");
  if (IsOfBackup(parsed)) return pool_.Allocate(payload_bytes);
  if (parsed.kind == static_cast<uint16_t>(MessageKind::kHello)) {
    return pool_.Allocate(payload_bytes);
  }
  if (const RefuseCode code = shard_->Check(parsed); code != RefuseCode::kNone) {
    After(absl::ZeroDuration(), [this, parsed, code] {
      Run(ShardMessage{parsed, {}, code});
    });
  }
  SYNCLINE_ASSIGN_OR_RETURN(const size_t limit, shard_->MaxPayloadBytes(parsed));
  if (payload_bytes > limit) return absl::InvalidArgumentError("too long");
  return pool_.Allocate(payload_bytes);
}

void ServerProcess::OnMessage(ByteView header, Buffer payload) {
  const auto parsed = ParseHeader(header);
  if (!*alive_ || !parsed.ok() || shard_ == nullptr) return;
  if (IsOfBackup(*parsed)) return OfBackup(*parsed, payload);
  bytes_ += payload.size();
  parts_.traffic.Arrived(*parsed, payload.size());
  switch (static_cast<MessageKind>(parsed->kind)) {
    case MessageKind::kHello:
      return TakeHello(*parsed, payload);
    case MessageKind::kPull:
      return TakeQuestion(*parsed);
    default:
      break;
  }
  Run(ShardMessage{*parsed, Slice::Of(payload)});
  const bool is_seed = parsed->kind == static_cast<uint16_t>(MessageKind::kSeed);
  if (is_seed && Owns(parsed->block) && shard_->block_version(parsed->block) == 0) {
    parts_.reference.SeedHeld(parsed->block, shard_->block_weights(parsed->block));
  }
}

}  // namespace syncline::sim
