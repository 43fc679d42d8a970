// Backups in another server's memory, as Engine has them.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/journal/record_bytes.h"
#include "tests/sim/server_engine.h"

namespace syncline::sim {
namespace {

constexpr uint64_t kLostRecord = 5;  // Fault::kLosesRecord

}  // namespace

// ---- Of a server ----

void ServerEngine::SendRecords(const std::string& address, const BackupAt& at) {
  if (at.anew) {
    records_ = std::make_unique<RecordSender>();
    if (!is_journaled_) {
      *disk_ = {};
      begun_at_ = 0;
      has_all_records_ = false;
    }
  }
  const auto on_failure = [this](const absl::Status& status) {
    After(absl::ZeroDuration(), [this, why = std::string(status.message())] {
      parts_.on_backup_lost(absl::StrCat("the connection to it broke: ", why));
    });
  };
  auto endpoint = transport_->Connect(address, {.on_failure = on_failure});
  if (!endpoint.ok()) {
    return parts_.on_backup_lost(std::string(endpoint.status().message()));
  }
  records_->Connect(*std::move(endpoint),
                    NameOfRecords(at.job, at.pair.sender, at.pair.session_key),
                    transport_->address());
  if (!at.anew) return;
  sinks_.Want(RecordSinks::Pass::kBackup);
  BeginPass();
}

void ServerEngine::StopRecords() {
  if (shard_ == nullptr || records_ == nullptr) return;
  records_.reset();
  if (!is_journaled_) has_all_records_ = false;  // none follow
  sinks_.Lose(RecordSinks::Sink::kBackup);
  Tell();
  BeginPass();
}

// ---- What the shard is, for a sink that knows nothing ----

void ServerEngine::BeginPass() {
  if (shard_ == nullptr) return;
  while (const auto order = sinks_.NextOrder()) {
    if (sinks_.pass() != RecordSinks::Pass::kJournal) {
      Run(ShardBackUp{*order});
      continue;
    }
    if (!has_ended_ || next_disk_ == nullptr) {
      sinks_.Decline();
      continue;
    }
    disk_ = std::exchange(next_disk_, nullptr);
    *disk_ = {.begins_anew = true};
    begun_at_ = 0;
    ++journal_;
    has_ended_ = has_states_ = false;
    begins_anew_ = true;
    snapshot_.reset();
    Run(ShardBackUp{*order});
  }
}

void ServerEngine::GoOnWith(RecordSinks::Pass pass, absl::Duration delay) {
  After(delay, [this, pass] {
    if (shard_ == nullptr || !sinks_.Continue(pass)) return;
    Run(ShardBackUp{ShardBackUp::Kind::kNext});
  });
}

void ServerEngine::OnBackedUp(const ShardBackedUp& backed_up) {
  switch (sinks_.Answered(backed_up)) {
    case RecordSinks::Pass::kBackup:
      if (!is_journaled_) has_all_records_ = !backed_up.more;
      if (!backed_up.more || parts_.fault == Fault::kHalfBackup) parts_.on_backed_up();
      if (backed_up.more) GoOnWith(RecordSinks::Pass::kBackup, absl::ZeroDuration());
      break;
    case RecordSinks::Pass::kJournal:
      has_states_ = !backed_up.more;
      if (backed_up.more) GoOnWith(RecordSinks::Pass::kJournal, absl::ZeroDuration());
      WholeIfSafe();
      break;
    case RecordSinks::Pass::kSnapshot:
      if (!snapshot_) break;
      if (backed_up.more) return TakeSnapshot(ShardBackUp::Kind::kNext);
      snapshot_->has_all = true;
      break;
    case RecordSinks::Pass::kNone:
      break;
  }
  After(absl::ZeroDuration(), [this] { BeginPass(); });
}

// ---- Of a stand-in ----

void ServerEngine::OfBackup(const MessageHeader& header, const Slice& payload) {
  if (header.kind == static_cast<uint16_t>(MessageKind::kRecordAck)) {
    const bool is_ours =
        records_ != nullptr && header.session_key == records_->name().session_key;
    if (!is_ours) return;  // of one before
    const auto records = records_->Acknowledged(header.step);
    if (!records) return;
    sinks_.Durable(RecordSinks::Sink::kBackup, *records);
    return Tell();
  }
  if (!pair_ || header.session_key != pair_->session_key) return;
  if (header.kind == static_cast<uint16_t>(MessageKind::kRecord)) {
    return TakeRecord(header, payload);
  }
  const std::string address(reinterpret_cast<const char*>(payload.data), payload.size);
  auto endpoint = transport_->Connect(address, {});
  if (endpoint.ok()) answers_ = *std::move(endpoint);
}

void ServerEngine::TakeRecord(const MessageHeader& header, const Slice& payload) {
  const auto lost = [this](const absl::Status& why) {
    parts_.on_backup_lost(std::string(why.message()));
  };
  auto bytes = receiver_.Take(header, {payload.data, payload.size});
  if (!bytes.ok()) return lost(bytes.status());
  if (!*bytes) return;
  auto record = ReadRecord(**bytes);
  if (!record.ok()) return lost(record.status());
  const bool is_lost =
      parts_.fault == Fault::kLosesRecord && receiver_.records() == kLostRecord;
  if (!is_lost) {
    disk_->records.push_back(std::make_shared<const ShardRecord>(*std::move(record)));
  }
  if (answers_ == nullptr) return;
  MessageHeader ack = NameOfRecords(options_.job, pair_->sender, pair_->session_key);
  ack.kind = static_cast<uint16_t>(MessageKind::kRecordAck);
  ack.step = receiver_.records();
  answers_->Send(SealHeader(ack), {}, [](const absl::Status&) {});
}

absl::StatusOr<uint64_t> ServerEngine::TakeOver() {
  pair_.reset();
  answers_.reset();
  const auto step = Restore();
  // Of its journal nothing is there yet.
  if (is_journaled_) {
    has_ended_ = true;
    has_all_records_ = false;
  }
  return step;
}

}  // namespace syncline::sim
