#include "tests/sim/server_engine.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/crc32c.h"
#include "comm/base/job_seed.h"
#include "comm/base/status.h"
#include "comm/base/tiling.h"
#include "comm/codec/frame.h"
#include "server/journal/record_player.h"

namespace syncline::sim {
namespace {

// The same period as that of an engine.
constexpr absl::Duration kPumpPeriod = absl::Milliseconds(10);

// Compares floats as bytes, so that equal NaNs are equal.
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

ServerEngine::ServerEngine(Parts parts)
    : parts_(std::move(parts)),
      pool_(size_t{1} << 20),
      transport_(parts_.network.CreateTransport(*this)),
      random_(parts_.seed),
      snapshots_random_(parts_.seed + 1),
      snapshot_every_(std::uniform_int_distribution<size_t>(5, 150)(snapshots_random_)),
      disk_(&parts_.disk) {
  PumpAll();
}

void ServerEngine::After(absl::Duration delay, std::function<void()> fn) {
  parts_.events.After(delay, [alive = alive_, fn = std::move(fn)] {
    if (*alive) fn();
  });
}

void ServerEngine::Kill() {
  *alive_ = false;
  parts_.network.Kill(transport_->address());
  ShardDisk& disk = *disk_;
  const size_t lost = disk.records.size() - disk.synced;
  disk.records.resize(disk.synced +
                      std::uniform_int_distribution<size_t>(0, lost)(random_));
}

std::optional<RecordSender::Progress> ServerEngine::backup() const {
  return senders_.progress();
}

// ---- Its job ----

absl::StatusOr<uint64_t> ServerEngine::Configure(const ConfigureJob& configure,
                                                 uint32_t shard) {
  const JobSpec& spec = configure.declared->spec;
  const std::vector<BlockRange> ranges = spec.Blocks();
  owned_.clear();
  blocks_.clear();
  for (uint32_t block = 0; block < ranges.size(); ++block) {
    if (configure.placement->shard_of_block[block] != shard) continue;
    owned_.insert(block);
    blocks_.push_back({block, ranges[block]});
  }
  options_ = ShardOptions{
      .job = configure.job,
      .seed = JobSeed(spec.name),
      .shard = shard,
      .transfers = *spec.Transfers(),
      .seed_codec = *parts_.codecs.Find(CodecId::kFp32),
      .training = spec.training,
      .tensors = spec.Trained(),
      .checksum = Checksum::kHeaderAndPayload,
      .records = (spec.IsJournaled() || spec.HasBackups()) && !configure.backup
                     ? Records::kAwaited
                     : Records::kKept};
  if (parts_.fault == Fault::kWrongWeight)
    options_.training.mode.values["age_power"] += 1;
  is_journaled_ = spec.IsJournaled();
  is_fenced_ = spec.IsJournaled() && spec.HasBackups();
  pair_ = configure.backup;
  is_stand_in_ = pair_.has_value();
  // A restored shard gets its backup later.
  const bool has_backup = spec.HasBackups() && !pair_ && configure.restore_run.empty();
  senders_.Clear();
  if (has_backup) senders_.Begin();
  begins_disk_ = true;
  sinks_ = RecordSinks(is_journaled_ && !pair_, has_backup);
  shard_ = *Shard::Create(options_, blocks_, pool_);
  workers_.clear();
  snapshot_.reset();
  has_ended_ = begins_anew_ = sync_fails_ = false;
  has_given_up_ = acknowledges_on_ = false;
  taken_over_.clear();
  ++journal_;
  if (!configure.restore_run.empty()) return Restore();
  *disk_ = {};
  begun_at_ = 0;
  return 0;
}

void ServerEngine::Drop() {
  snapshot_.reset();
  sinks_ = {};
  next_disk_ = nullptr;
  has_ended_ = begins_anew_ = false;
  shard_.reset();
  workers_.clear();
  senders_.Clear();
  pair_.reset();
  answers_.reset();
}

void ServerEngine::Run(const ShardInput& input) {
  SYNCLINE_CHECK(shard_ != nullptr);
  for (const ShardOutput& output : shard_->Apply(input)) Perform(output);
  Tell();
}

void ServerEngine::Tell() {
  if (shard_ == nullptr) return;
  if (const auto news = sinks_.News()) Run(*news);
}

void ServerEngine::Perform(const ShardOutput& output) {
  if (const auto* reply = std::get_if<ShardReply>(&output)) return Reply(*reply);
  if (const auto* applied = std::get_if<ShardApplied>(&output)) {
    if (!has_given_up_) parts_.reference.Applied(*applied);
    return;
  }
  if (const auto* recorded = std::get_if<ShardRecorded>(&output)) {
    return Keep(recorded->record);
  }
  if (const auto* backed_up = std::get_if<ShardBackedUp>(&output)) {
    return OnBackedUp(*backed_up);
  }
  parts_.on_output(output);
}

ShardProgress ServerEngine::Progress() {
  for (const auto& [life, link] : workers_) {
    shard_->Crossed(life.first, life.second, link->TakeCrossedBytes());
  }
  return shard_->Progress();
}

// ---- Its disk ----

std::map<uint32_t, uint64_t> ShardDisk::Versions() const {
  std::map<uint32_t, uint64_t> versions;
  for (size_t i = 0; i < synced; ++i) {
    if (records[i] == nullptr) continue;
    if (const auto* step = std::get_if<StepRecord>(&records[i]->what)) {
      versions[step->block] = std::max(versions[step->block], step->step + 1);
    }
    if (const auto* state = std::get_if<BlockStateRecord>(&records[i]->what)) {
      versions[state->block] = std::max(versions[state->block], state->saved->version);
    }
  }
  return versions;
}

void ServerEngine::Keep(std::shared_ptr<const ShardRecord> record) {
  const RecordSinks::Takers takers = sinks_.Take(*record);
  for (size_t slot = 0; slot < RecordSenders::kSlots; ++slot) {
    if (!takers.backups[slot]) continue;
    senders_.at(slot)->Take(*record);
    if (parts_.fault != Fault::kPublishesEarly) continue;
    After(absl::ZeroDuration(), [this, slot] {
      sinks_.Durable(RecordSinks::BackupSink(slot), ~uint64_t{0});
      Tell();
    });
  }
  // Without a journal, records are kept for the comparison at the end, but for states that
  // only another backup needs.
  const bool is_state = std::holds_alternative<BlockStateRecord>(record->what) ||
                        std::holds_alternative<JobStateRecord>(record->what);
  if (is_journaled_ ? !takers.journal : is_state && !begins_disk_) return;
  if (has_ended_) return;
  disk_->records.push_back(std::move(record));
  if (!is_journaled_) return;
  NoteRecord(disk_->records.back());
  if (parts_.fault == Fault::kPublishesUnsynced) {
    sinks_.Durable(RecordSinks::Sink::kJournal, ~uint64_t{0});
  }
  SyncSoon();
}

// Syncs run one after the other. Each includes all records that came before it started.
void ServerEngine::SyncSoon() {
  if (std::exchange(syncs_, true)) return;
  const auto taken = static_cast<int64_t>(disk_->records.size()) - begun_at_;
  const int micros = std::uniform_int_distribution<int>(10, 20000)(random_);
  After(absl::Microseconds(micros), [this, taken, journal = journal_] {
    syncs_ = false;
    if (std::exchange(sync_fails_, false) && !has_ended_) LoseSync();
    if (journal == journal_ && !has_ended_) {
      disk_->synced = static_cast<size_t>(taken + begun_at_);
      sinks_.Durable(RecordSinks::Sink::kJournal, static_cast<uint64_t>(taken));
      Tell();
      WholeIfSafe();
      PruneIfSafe();
      SnapshotIfDue();
    }
    if (disk_->records.size() > disk_->synced) SyncSoon();
  });
}

absl::StatusOr<uint64_t> ServerEngine::Restore() {
  std::vector<std::shared_ptr<const ShardRecord>>& records = disk_->records;
  const bool is_behind =
      parts_.fault == Fault::kStepBehind && is_fenced_ && !is_stand_in_;
  for (bool has_gone = !is_behind; !has_gone && !records.empty(); records.pop_back()) {
    has_gone = records.back() != nullptr &&
               std::holds_alternative<StepRecord>(records.back()->what);
  }
  RecordPlayer player(*shard_, {.beginning = disk_->begins_anew ? PlayedFrom::kSnapshot
                                                                : PlayedFrom::kNothing,
                                .records = "what is left",
                                .whose = "what was"});
  size_t whole = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    if (records[i] != nullptr) SYNCLINE_RETURN_IF_ERROR(player.Take(*records[i]));
    if (player.is_whole()) whole = i + 1;
  }
  SYNCLINE_RETURN_IF_ERROR(player.CheckWhole());
  records.resize(whole);
  disk_->synced = whole;
  begun_at_ = static_cast<int64_t>(whole);
  if (parts_.fault == Fault::kForgetsLedger) SYNCLINE_RETURN_IF_ERROR(ForgetLedger());
  shard_->BeginAgain();
  uint64_t lowest = ~uint64_t{0};
  for (const ShardBlock& block : blocks_) {
    const uint64_t version = shard_->block_version(block.block);
    if (is_stand_in_ && pair_) {
      taken_over_[block.block] = version;
    } else {
      parts_.on_restored(block.block, version);
    }
    const bool is_frozen = options_.tensors[block.range.tensor].group.frozen;
    if (!is_frozen) lowest = std::min(lowest, version);
  }
  return lowest;
}

absl::Status ServerEngine::ForgetLedger() {
  SYNCLINE_ASSIGN_OR_RETURN(ShardSnapshot saved, shard_->Save());
  for (auto& [id, block] : saved.blocks) block.version -= block.version > 0 ? 1 : 0;
  shard_ = *Shard::Create(options_, blocks_, pool_);
  return shard_->Load(saved);
}

absl::Status ServerEngine::CheckRecords() {
  if (!has_all_records_ || has_ended_ || begins_anew_) return absl::OkStatus();
  options_.records = Records::kNone;
  const std::unique_ptr<Shard> replayed = *Shard::Create(options_, blocks_, pool_);
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> digests;  // by block and version
  RecordFilter filter(disk_->begins_anew ? PlayedFrom::kSnapshot : PlayedFrom::kNothing);
  for (const auto& record : disk_->records) {
    if (record == nullptr || !filter.Takes(*record, *replayed)) continue;
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

absl::Status ServerEngine::Compare(const Shard& replayed) const {
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
  // Save fails if a step is incomplete. A worker may have pushed for such a step, without
  // waiting for it.
  if (!expected.ok()) return absl::OkStatus();
  const bool is_same = got.ok() && SameBits(*got, *expected);
  return is_same ? absl::OkStatus()
                 : absl::InternalError("replayed, the optimizer's state is another one");
}

// ---- Its workers ----

void ServerEngine::Reply(const ShardReply& reply) {
  const WorkerLife life = {reply.rank, reply.incarnation};
  const auto worker = workers_.find(life);
  if (worker == workers_.end() || !worker->second->Send(reply)) return;
  const bool is_view = reply.header.kind == static_cast<uint16_t>(MessageKind::kPublish);
  if (parts_.fault == Fault::kViewsTwice && is_view &&
      sent_twice_.insert({life, reply.header.block, reply.header.step}).second) {
    Pump(life);
    MessageHeader question = reply.header;
    question.kind = static_cast<uint16_t>(MessageKind::kPull);
    question.flags = kFlagResend;
    worker->second->Ask(question);
  }
  Pump(life);
}

void ServerEngine::Pump(WorkerLife life) {
  const auto worker = workers_.find(life);
  if (worker == workers_.end()) return;
  worker->second->Pump(parts_.events.now(), [this](const MessageHeader& question) {
    Run(ShardMessage{question, {}});
  });
}

void ServerEngine::PumpAll() {
  for (const auto& [life, link] : workers_) Pump(life);
  After(kPumpPeriod, [this] { PumpAll(); });
}

void ServerEngine::TakeHello(const MessageHeader& header, const Slice& payload) {
  const WorkerLife life = {header.rank, header.incarnation};
  const ShardMember* member = shard_->FindMember(life.first, life.second);
  if (member == nullptr || member->session_key != header.session_key) return;
  const auto known = workers_.find(life);
  if (known != workers_.end() && known->second->WasWelcomed(header)) {
    return known->second->Welcome(header);
  }
  const uint64_t connection = next_connection_++;
  const std::string address(reinterpret_cast<const char*>(payload.data), payload.size);
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

void ServerEngine::TakeQuestion(const MessageHeader& header) {
  if (shard_->Check(header) != RefuseCode::kNone) return Run(ShardMessage{header, {}});
  const WorkerLife life = {header.rank, header.incarnation};
  const auto worker = workers_.find(life);
  if (worker == workers_.end()) return;
  worker->second->Ask(header);
  Pump(life);
}

void ServerEngine::Forget(WorkerLife life, uint64_t connection) {
  const auto worker = workers_.find(life);
  if (worker != workers_.end() && worker->second->number() == connection) {
    workers_.erase(worker);
  }
}

absl::StatusOr<MessageHeader> ServerEngine::CheckArrival(ByteView header,
                                                         size_t payload_bytes) {
  SYNCLINE_ASSIGN_OR_RETURN(const MessageHeader parsed, ParseHeader(header));
  if (shard_ == nullptr) return absl::NotFoundError("no job");
  if (IsOfBackup(parsed)) return parsed;
  if (parsed.kind == static_cast<uint16_t>(MessageKind::kHello)) return parsed;
  if (const RefuseCode code = shard_->Check(parsed); code != RefuseCode::kNone) {
    After(absl::ZeroDuration(), [this, parsed, code] {
      if (shard_ != nullptr) Run(ShardMessage{parsed, {}, code});
    });
  }
  SYNCLINE_ASSIGN_OR_RETURN(const size_t limit, shard_->MaxPayloadBytes(parsed));
  if (payload_bytes > limit) return absl::InvalidArgumentError("too long");
  return parsed;
}

absl::StatusOr<Buffer> ServerEngine::Allocate(ByteView header, size_t payload_bytes) {
  SYNCLINE_RETURN_IF_ERROR(CheckArrival(header, payload_bytes).status());
  return pool_.Allocate(payload_bytes);
}

void ServerEngine::OnMessage(ByteView header, Buffer payload) {
  const auto parsed = ParseHeader(header);
  if (*alive_ && parsed.ok() && shard_ != nullptr) Take(*parsed, Slice::Of(payload));
}

void ServerEngine::OnBorrowed(ByteView header, Landed payload) {
  const auto parsed = CheckArrival(header, payload.size());
  if (parsed.ok()) Take(*parsed, std::move(payload));
}

bool ServerEngine::IsCounted(const MessageHeader& header) const {
  return header.kind == static_cast<uint16_t>(MessageKind::kPush) && header.samples > 0 &&
         Owns(header.block) && header.step < shard_->block_version(header.block);
}

void ServerEngine::CountAgain(MessageHeader header, const Landed& payload) {
  header.step = shard_->block_version(header.block);
  const Buffer frames = Buffer::Allocate(payload.size());
  payload.CopyTo(frames.data());
  const auto block = std::ranges::find(blocks_, header.block, &ShardBlock::block);
  for (uint32_t tile = 0; tile < TilesOf(block->range.elements); ++tile) {
    TileHeader frame;
    std::byte* const place = frames.data() + tile * sizeof(frame);
    std::memcpy(&frame, place, sizeof(frame));
    frame.step = header.step;
    frame.header_crc = Crc32c(
        std::as_bytes(std::span(&frame, 1)).first(offsetof(TileHeader, header_crc)));
    std::memcpy(place, &frame, sizeof(frame));
  }
  Run(ShardMessage{header, Slice::Of(frames)});
}

void ServerEngine::Take(const MessageHeader& header, Landed payload) {
  if (IsOfBackup(header)) return OfBackup(header, payload.body);
  bytes_ += payload.size();
  parts_.traffic.Arrived(header, payload.size());
  switch (static_cast<MessageKind>(header.kind)) {
    case MessageKind::kHello:
      return TakeHello(header, payload.body);
    case MessageKind::kPull:
    case MessageKind::kPullAverage:
    case MessageKind::kPullState:
      return TakeQuestion(header);
    default:
      break;
  }
  if (parts_.fault == Fault::kCountsAgain && IsCounted(header)) {
    return CountAgain(header, payload);
  }
  Run(ShardMessage{header, std::move(payload)});
  const bool is_seed = header.kind == static_cast<uint16_t>(MessageKind::kSeed);
  if (is_seed && Owns(header.block) && shard_->block_version(header.block) == 0) {
    parts_.reference.SeedHeld(header.block, shard_->block_weights(header.block));
  }
}

}  // namespace syncline::sim
