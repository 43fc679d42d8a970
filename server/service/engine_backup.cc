// The parts of an engine that deal with records: sending them to a backup, and receiving
// them for a backup (ADR 29).
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "comm/transport/message.h"
#include "server/service/engine.h"
#include "server/service/engine_connection.h"

namespace syncline {
namespace {

MessageKind KindOf(const MessageHeader& header) {
  return static_cast<MessageKind>(header.kind);
}

MessageHeader NameOf(uint32_t job, const BackupPair& pair) {
  return NameOfRecords(job, pair.sender, pair.session_key);
}

// Returns the name by which the data plane knows the sender of records.
MemberIdentity SenderOf(uint32_t job, const BackupPair& pair) {
  return {job, kBackupRanks + pair.sender.server, pair.sender.incarnation};
}

bool IsBy(const MessageHeader& header, const MessageHeader& name) {
  return header.rank == name.rank && header.incarnation == name.incarnation &&
         header.session_key == name.session_key;
}

}  // namespace

// A stolen stand-in must not be able to speak for workers, although it knows their
// session keys. So only acknowledgements are accepted from it.
class Engine::FromBackup : public Receiver {
 public:
  FromBackup(Engine& engine, uint32_t job) : engine_(engine), job_(job) {}

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override {
    SYNCLINE_ASSIGN_OR_RETURN(const MessageHeader parsed, ParseHeader(header));
    if (IsOwn(parsed)) return engine_.Allocate(header, payload_bytes);
    engine_.OnRefused(
        {Refusal::kIdentity, absl::StrCat("the backup of job ", job_),
         absl::StrCat("a backup sent a message in the name of rank ", parsed.rank,
                      " of job ", parsed.job, "; such messages are dropped")});
    return absl::PermissionDeniedError("no acknowledgement of records");
  }
  void OnMessage(ByteView header, Buffer payload) override {
    const auto parsed = ParseHeader(header);
    if (parsed.ok() && IsOwn(*parsed)) {
      engine_.TakeBackup(*parsed, Slice::Of(payload), nullptr);
    }
  }

 private:
  bool IsOwn(const MessageHeader& header) const {
    return header.job == job_ && KindOf(header) == MessageKind::kRecordAck;
  }

  Engine& engine_;
  const uint32_t job_;
};

absl::Status Engine::CheckBackup(const MessageHeader& header,
                                 size_t payload_bytes) const {
  const auto refused = absl::PermissionDeniedError(
      absl::StrCat("records of job ", header.job, " from an unknown sender"));
  if (KindOf(header) == MessageKind::kRecordAck) {
    const auto job = jobs_.find(header.job);
    if (job == jobs_.end()) return refused;
    const auto slot = job->second.records.Find(header.session_key);
    const bool is_ours = slot && IsBy(header, job->second.records.at(*slot)->name());
    return is_ours && payload_bytes == 0 ? absl::OkStatus() : refused;
  }
  const auto backup = backups_.find(header.job);
  if (backup == backups_.end() ||
      !IsBy(header, NameOf(header.job, backup->second.from))) {
    return refused;
  }
  return payload_bytes <= kRecordPieceBytes
             ? absl::OkStatus()
             : absl::InvalidArgumentError("a piece of a record is too long");
}

void Engine::SendRecords(uint32_t id, const std::string& address, BackupPair as,
                         Backups since) {
  loop_->Post([this, id, address, as = std::move(as), since](Transport&) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end()) return;
    RecordSenders& records = job->second.records;
    // One that has its records from the first on has no key yet.
    const auto slot = since == Backups::kWithState ? records.Begin() : records.Find(0);
    auto& from_backup = job->second.from_backup;
    if (from_backup == nullptr) from_backup = std::make_shared<FromBackup>(*this, id);
    const auto lost = [this, id, key = as.session_key](const absl::Status& status) {
      events_.on_backup_lost(
          id, key,
          absl::StrCat("the connection to it broke: ", std::string(status.message())));
    };
    if (!slot) return lost(absl::FailedPreconditionError("it is one too many"));
    auto endpoint =
        transport_->Connect(address, {.on_failure = lost,
                                      .receiver = from_backup.get(),
                                      .key = {EncodeIdentity(SenderOf(id, as)), as.key}});
    if (!endpoint.ok()) {
      // It has no key by which StopRecords could find it.
      if (since == Backups::kWithState) records.End(*slot);
      return lost(endpoint.status());
    }
    records.at(*slot)->Connect(*std::move(endpoint), NameOf(id, as),
                               transport_->address());
    if (since == Backups::kFromTheFirst) return;
    job->second.sinks.Want(RecordSinks::BackupPass(*slot));
    BeginPass(id, job->second);
  });
}

// ---- Passes: the state of a shard for a sink that has nothing yet ----

void Engine::RecordState(uint32_t id, std::function<bool()> begin) {
  loop_->Post([this, id, begin = std::move(begin)](Transport&) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end()) return;
    job->second.begins_journal = begin;
    job->second.sinks.Want(RecordSinks::Pass::kJournal);
    BeginPass(id, job->second);
  });
}

void Engine::TakeSnapshot(uint32_t id, ShardBackUp::Kind order) {
  loop_->Post([this, id, order](Transport&) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end()) return;
    if (order == ShardBackUp::Kind::kNext) {
      return GoOnWith(id, job->second, RecordSinks::Pass::kSnapshot);
    }
    job->second.sinks.Want(RecordSinks::Pass::kSnapshot);
    BeginPass(id, job->second);
  });
}

void Engine::BeginPass(uint32_t id, Job& job) {
  while (const auto order = job.sinks.NextOrder()) {
    const bool is_journals = job.sinks.pass() == RecordSinks::Pass::kJournal;
    job.has_more = false;
    if (is_journals && !job.begins_journal()) {
      job.sinks.Decline();
      continue;
    }
    if (*order == ShardBackUp::Kind::kBegin) job.journal = {};
    Run(id, job, ShardBackUp{*order});
  }
}

void Engine::GoOnWith(uint32_t id, Job& job, RecordSinks::Pass pass) {
  if (!job.sinks.Continue(pass)) return;
  Run(id, job, ShardBackUp{ShardBackUp::Kind::kNext});
}

void Engine::BackUpNext(uint32_t id, Job& job, const ShardBackedUp& backed_up) {
  const RecordSinks::Pass answered = job.sinks.Answered(backed_up);
  const auto slot = RecordSinks::BackupOf(answered);
  switch (answered) {
    // The next block follows once the disk has taken some records.
    case RecordSinks::Pass::kJournal:
      job.has_more = backed_up.more;
      if (!backed_up.more) events_.on_recorded(id, backed_up);
      break;
    case RecordSinks::Pass::kSnapshot:
      events_.on_recorded(id, backed_up);
      break;
    case RecordSinks::Pass::kFirstBackup:
    case RecordSinks::Pass::kSecondBackup:
      if (!backed_up.more) {
        events_.on_backed_up(id, job.records.at(*slot)->name().session_key);
      }
      break;
    case RecordSinks::Pass::kNone:
      break;
  }
  const bool goes_on = backed_up.more && slot;
  // Posted, so that other messages are handled in between.
  loop_->Post([this, id, goes_on, answered](Transport&) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    if (goes_on) GoOnWith(id, found->second, answered);
    BeginPass(id, found->second);
  });
}

void Engine::JournalDurable(uint32_t id, uint64_t records) {
  loop_->Post([this, id, records](Transport&) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    Job& job = found->second;
    const bool has_ended = records == ~uint64_t{0};
    if (has_ended && job.is_fenced) return events_.on_journal_ended(id);
    if (has_ended) {
      job.sinks.Lose(RecordSinks::Sink::kJournal);
    } else {
      job.sinks.Durable(RecordSinks::Sink::kJournal, records);
    }
    if (const auto news = job.sinks.News()) Run(id, job, *news);
    if (!std::exchange(job.has_more, false)) return BeginPass(id, job);
    GoOnWith(id, job, RecordSinks::Pass::kJournal);
  });
}

void Engine::LoseJournal(uint32_t id) {
  loop_->Post([this, id](Transport&) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end()) return;
    job->second.sinks.Lose(RecordSinks::Sink::kJournal);
    job->second.has_more = false;
    if (const auto news = job->second.sinks.News()) Run(id, job->second, *news);
    BeginPass(id, job->second);
  });
}

void Engine::StopRecords(uint32_t id, uint64_t session_key) {
  loop_->Post([this, id, session_key](Transport&) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end() || job->second.records.empty()) return;
    RecordSenders& records = job->second.records;
    for (size_t slot = 0; slot < RecordSenders::kSlots; ++slot) {
      if (records.at(slot) == nullptr) continue;
      if (session_key != 0 && records.Find(session_key) != slot) continue;
      records.End(slot);
      job->second.sinks.Lose(RecordSinks::BackupSink(slot));
    }
    GoOnWithout(id, job->second);
  });
}

void Engine::GoOnWithout(uint32_t id, Job& job) {
  if (const auto news = job.sinks.News()) Run(id, job, *news);
  if (std::exchange(job.has_more, false)) {
    GoOnWith(id, job, RecordSinks::Pass::kJournal);
  }
  BeginPass(id, job);
}

void Engine::TakeRecords(uint32_t job, BackupPair from, TakeRecord take) {
  Await([&] {
    keys_[SenderOf(job, from)] = from.key;
    Backup backup;
    backup.from = std::move(from);
    backup.take = std::move(take);
    backups_[job] = std::move(backup);
  });
}

void Engine::StopTaking(uint32_t job) {
  Await([&] {
    const auto backup = backups_.find(job);
    if (backup == backups_.end()) return;
    const MemberIdentity sender = SenderOf(job, backup->second.from);
    backups_.erase(backup);
    keys_.erase(sender);
    connections_.erase(sender);
  });
}

// Over TCP the answers go back on the connection on which the records came. A failure of
// this connection has no consequences here: the server may be dead, and then this backup
// is needed. A server that is alive notices the failure itself.
void Engine::AnswerRecords(const MessageHeader& hello, const Slice& payload,
                           Connection* from) {
  Backup& backup = backups_.at(hello.job);
  if (from != nullptr) {
    backup.answers = from->endpoint();
    return;
  }
  const std::string address(reinterpret_cast<const char*>(payload.data), payload.size);
  auto endpoint = transport_->Connect(address, {});
  if (endpoint.ok()) backup.answers = *std::move(endpoint);
}

void Engine::SendAck(uint32_t job, const Backup& backup) {
  if (backup.answers == nullptr) return;
  MessageHeader ack = NameOf(job, backup.from);
  ack.kind = static_cast<uint16_t>(MessageKind::kRecordAck);
  ack.step = backup.receiver.records();
  backup.answers->SendAs(TrafficOf(ack, 0), SealHeader(ack), {},
                         [](const absl::Status&) {});
}

void Engine::Acknowledge(uint32_t job) {
  loop_->Post([this, job](Transport&) {
    const auto backup = backups_.find(job);
    if (backup != backups_.end()) SendAck(job, backup->second);
  });
}

void Engine::TakeBackup(const MessageHeader& header, const Slice& payload,
                        Connection* from) {
  // The job may have ended since the header was checked.
  if (!CheckBackup(header, payload.size).ok()) return;
  bytes_.fetch_add(kMessageHeaderBytes + payload.size, std::memory_order_relaxed);
  if (KindOf(header) == MessageKind::kRecordAck) {
    Job& job = jobs_.at(header.job);
    const size_t slot = job.records.Find(header.session_key).value();
    const auto records = job.records.at(slot)->Acknowledged(header.step);
    if (!records) return;
    job.sinks.Durable(RecordSinks::BackupSink(slot), *records);
    if (const auto news = job.sinks.News()) Run(header.job, job, *news);
    // The journal's pass continues, because the disk had taken the records before.
    if (!std::exchange(job.has_more, false)) return;
    return GoOnWith(header.job, job, RecordSinks::Pass::kJournal);
  }
  if (KindOf(header) == MessageKind::kBackupHello) {
    return AnswerRecords(header, payload, from);
  }
  Backup& backup = backups_.at(header.job);
  auto record = backup.receiver.Take(header, {payload.data, payload.size});
  if (record.ok() && !*record) return;
  const absl::StatusOr<bool> has_room =
      record.ok() ? backup.take(**std::move(record)) : record.status();
  if (!has_room.ok()) {
    backups_.erase(header.job);
    return events_.on_backup_lost(header.job, 0,
                                  std::string(has_room.status().message()));
  }
  if (*has_room) SendAck(header.job, backup);
}

}  // namespace syncline
