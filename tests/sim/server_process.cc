#include "tests/sim/server_process.h"

#include <utility>
#include <variant>

#include "comm/base/check.h"
#include "comm/base/job_seed.h"
#include "comm/base/status.h"

namespace syncline::sim {

ServerProcess::ServerProcess(Parts parts, std::string name)
    : parts_(std::move(parts)),
      pool_(size_t{1} << 20),
      transport_(parts_.network.CreateTransport(*this)) {
  connection_ = parts_.control.Attach(
      {.on_message = [this](const CoordinatorBody& body) { OnControl(body); },
       .on_end =
           [](const absl::Status&) {
             SYNCLINE_CHECK(false);
           }});  // servers never die here
  parts_.control.Send(connection_, ServerHello{.name = std::move(name),
                                               .shard_addresses = {transport_->address()},
                                               .lanes = "inproc"});
  Beat();
}

void ServerProcess::Beat() {
  Heartbeat beat{.step = 0, .bytes = bytes_};
  if (shard_ != nullptr) beat.jobs.push_back(Progress());
  parts_.control.Send(connection_, std::move(beat));
  parts_.events.After(parts_.heartbeat_interval, [this] { Beat(); });
}

JobProgress ServerProcess::Progress() const {
  const ShardProgress shard = shard_->Progress();
  JobProgress progress{.job = job_,
                       .step = shard.step,
                       .trained = shard.trained,
                       .undecided = shard.undecided,
                       .unseeded = shard.unseeded,
                       .completed = shard.completed};
  for (const ShardProgress::Member& member : shard.members) {
    progress.members.push_back(
        {member.rank, member.owed, member.waits, member.contributed, member.moved});
  }
  return progress;
}

void ServerProcess::OnControl(const CoordinatorBody& body) {
  if (const auto* configure = std::get_if<ConfigureJob>(&body)) Configure(*configure);
  if (const auto* prepare = std::get_if<PrepareEpoch>(&body))
    Run(ShardPrepare{prepare->epoch});
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
  if (const auto* decision = std::get_if<StepDecision>(&body)) {
    const Decision& what = decision->decision;
    Run(ShardDecision{.step = decision->step,
                      .gradient_scale = what.gradient_scale,
                      .verdict = what.skip ? ShardDecision::Verdict::kSkip
                                           : ShardDecision::Verdict::kApply,
                      .loss_scale = what.loss_scale,
                      .figures = what.figures});
  }
}

void ServerProcess::Configure(const ConfigureJob& configure) {
  job_ = configure.job;
  const JobSpec& spec = configure.declared->spec;
  const std::vector<BlockRange> ranges = spec.Blocks();
  std::vector<ShardBlock> blocks;
  for (uint32_t block = 0; block < ranges.size(); ++block) {
    if (configure.placement->shard_of_block[block] != configure.first_shard) continue;
    owned_.insert(block);
    blocks.push_back({block, ranges[block]});
  }
  const ShardOptions options{.job = job_,
                             .seed = JobSeed(spec.name),
                             .shard = configure.first_shard,
                             .transfers = *spec.Transfers(),
                             .seed_codec = *parts_.codecs.Find(CodecId::kFp32),
                             .training = spec.training,
                             .tensors = spec.Trained(),
                             .checksum = Checksum::kHeaderAndPayload};
  shard_ = *Shard::Create(options, blocks, pool_);
  parts_.control.Send(connection_, JobConfigured{job_});
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
    parts_.control.Send(connection_, EpochCommitted{job_, committed->epoch});
  }
  if (const auto* figures = std::get_if<ShardFigures>(&output)) {
    parts_.control.Send(
        connection_, BlockFigures{job_, figures->block, figures->step, figures->figures});
  }
  if (const auto* applied = std::get_if<ShardApplied>(&output))
    parts_.reference.Applied(*applied);
}

void ServerProcess::Reply(const ShardReply& reply) {
  const std::pair life{reply.rank, reply.incarnation};
  if (!workers_.contains(life)) {
    const std::string address = parts_.address_of(reply.rank, reply.incarnation);
    if (address.empty()) return;
    workers_[life] = *transport_->Connect(address, {});
  }
  MessageHeader header = reply.header;
  workers_[life]->Send(SealHeader(header), reply.payload,
                       [this, header](const absl::Status& status) {
                         if (status.ok()) shard_->Delivered(header);
                       });
}

absl::StatusOr<Buffer> ServerProcess::Allocate(ByteView header, size_t payload_bytes) {
  SYNCLINE_ASSIGN_OR_RETURN(const MessageHeader parsed, ParseHeader(header));
  if (shard_ == nullptr) return absl::NotFoundError("no job");
  SYNCLINE_ASSIGN_OR_RETURN(const size_t limit, shard_->MaxPayloadBytes(parsed));
  if (payload_bytes > limit) return absl::InvalidArgumentError("too long");
  return pool_.Allocate(payload_bytes);
}

void ServerProcess::OnMessage(ByteView header, Buffer payload) {
  const auto parsed = ParseHeader(header);
  if (!parsed.ok() || shard_ == nullptr) return;
  bytes_ += payload.size();
  Run(ShardMessage{*parsed, Slice::Of(payload)});
  const bool is_seed = parsed->kind == static_cast<uint16_t>(MessageKind::kSeed);
  if (is_seed && Owns(parsed->block) && shard_->block_version(parsed->block) == 0) {
    parts_.reference.SeedHeld(parsed->block, shard_->block_weights(parsed->block));
  }
}

}  // namespace syncline::sim
