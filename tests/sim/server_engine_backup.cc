// Backups in another server's memory, as in Engine.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "server/journal/record_bytes.h"
#include "tests/sim/server_engine.h"

namespace syncline::sim {
namespace {

constexpr uint64_t kLostRecord = 5;  // Fault::kLosesRecord

}  // namespace

// ---- Functions of a server ----

void ServerEngine::SendRecords(const std::string& address, const BackupAt& at) {
  const std::optional<size_t> slot = at.with_state ? senders_.Begin() : senders_.Find(0);
  SYNCLINE_CHECK(slot);
  const uint64_t key = at.pair.session_key;
  const auto on_failure = [this, key](const absl::Status& status) {
    After(absl::ZeroDuration(), [this, key, why = std::string(status.message())] {
      parts_.on_backup_lost(key, absl::StrCat("the connection to it broke: ", why));
    });
  };
  auto endpoint = transport_->Connect(address, {.on_failure = on_failure});
  if (!endpoint.ok()) {
    if (at.with_state) senders_.End(*slot);
    return parts_.on_backup_lost(key, std::string(endpoint.status().message()));
  }
  senders_.at(*slot)->Connect(*std::move(endpoint),
                              NameOfRecords(at.job, at.pair.sender, at.pair.session_key),
                              transport_->address());
  if (!at.with_state) return;
  if (parts_.fault == Fault::kFeedsNewOnly) older_slot_ = 1 - *slot;
  sinks_.Want(RecordSinks::BackupPass(*slot));
  // Some copies take long, so that steps are made meanwhile.
  const bool is_slow = random_() % 2 == 0;
  const int millis = std::uniform_int_distribution<int>(0, 1000)(random_);
  After(absl::Milliseconds(is_slow ? millis : 0), [this] { BeginPass(); });
}

void ServerEngine::StopRecords(uint64_t session_key) {
  if (shard_ == nullptr || senders_.empty()) return;
  for (size_t slot = 0; slot < RecordSenders::kSlots; ++slot) {
    if (senders_.at(slot) == nullptr) continue;
    if (session_key != 0 && senders_.Find(session_key) != slot) continue;
    senders_.End(slot);
    sinks_.Lose(RecordSinks::BackupSink(slot));
  }
  // Without any, later records are not kept.
  if (!is_journaled_ && senders_.empty()) has_all_records_ = false;
  Tell();
  BeginPass();
}

// ---- The state of the shard, for a new journal, snapshot or backup ----

void ServerEngine::BeginPass() {
  if (shard_ == nullptr) return;
  while (const auto order = sinks_.NextOrder()) {
    if (sinks_.pass() != RecordSinks::Pass::kJournal) {
      begins_disk_ = *order == ShardBackUp::Kind::kBegin;
      if (begins_disk_ && !is_journaled_) {
        *disk_ = {};
        begun_at_ = 0;
        has_all_records_ = false;
      }
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

void ServerEngine::OnBackupPass(size_t slot, const ShardBackedUp& backed_up) {
  if (!is_journaled_ && begins_disk_) has_all_records_ = !backed_up.more;
  if (!backed_up.more || parts_.fault == Fault::kHalfBackup) {
    parts_.on_backed_up(senders_.at(slot)->name().session_key);
  }
  if (backed_up.more) GoOnWith(RecordSinks::BackupPass(slot), absl::ZeroDuration());
}

void ServerEngine::OnBackedUp(const ShardBackedUp& backed_up) {
  const RecordSinks::Pass answered = sinks_.Answered(backed_up);
  switch (answered) {
    case RecordSinks::Pass::kFirstBackup:
    case RecordSinks::Pass::kSecondBackup:
      OnBackupPass(*RecordSinks::BackupOf(answered), backed_up);
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

// ---- Functions of a stand-in ----

void ServerEngine::OfBackup(const MessageHeader& header, const Slice& payload) {
  if (header.kind == static_cast<uint16_t>(MessageKind::kRecordAck)) {
    const auto slot = senders_.Find(header.session_key);
    if (!slot) return;  // it is for an earlier backup
    const auto records = senders_.at(*slot)->Acknowledged(header.step);
    if (!records) return;
    sinks_.Durable(RecordSinks::BackupSink(*slot), *records);
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
    parts_.on_backup_lost(0, std::string(why.message()));
  };
  auto bytes = receiver_.Take(header, {payload.data, payload.size});
  if (!bytes.ok()) return lost(bytes.status());
  if (!*bytes) return;
  if (acknowledges_on_) return Acknowledge();
  auto record = ReadRecord(**bytes);
  if (!record.ok()) return lost(record.status());
  const bool is_lost =
      parts_.fault == Fault::kLosesRecord && receiver_.records() == kLostRecord;
  if (!is_lost) {
    disk_->records.push_back(std::make_shared<const ShardRecord>(*std::move(record)));
  }
  Acknowledge();
}

void ServerEngine::Acknowledge() {
  if (answers_ == nullptr) return;
  MessageHeader ack = NameOfRecords(options_.job, pair_->sender, pair_->session_key);
  ack.kind = static_cast<uint16_t>(MessageKind::kRecordAck);
  ack.step = receiver_.records();
  answers_->Send(SealHeader(ack), {}, [](const absl::Status&) {});
}

absl::StatusOr<uint64_t> ServerEngine::TakeOver() {
  const auto step = Restore();
  acknowledges_on_ = parts_.fault == Fault::kAcknowledgesOn;
  if (!acknowledges_on_) {
    pair_.reset();
    answers_.reset();
  }
  // Its journal does not exist yet.
  if (is_journaled_) {
    has_ended_ = true;
    has_all_records_ = false;
  }
  return step;
}

void ServerEngine::TakePlace() {
  for (const auto& [block, version] : std::exchange(taken_over_, {})) {
    parts_.on_restored(block, version);
  }
}

}  // namespace syncline::sim
