// Records between engines of a server and of the stand-in that holds its backup (ADR 29).
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

// By which it is known on the data plane.
MemberIdentity SenderOf(uint32_t job, const BackupPair& pair) {
  return {job, kBackupRanks + pair.sender.server, pair.sender.incarnation};
}

bool IsBy(const MessageHeader& header, const MessageHeader& name) {
  return header.rank == name.rank && header.incarnation == name.incarnation &&
         header.session_key == name.session_key;
}

}  // namespace

// A stand-in that was stolen must not speak for workers, whose session keys it knows.
class Engine::FromBackup : public Receiver {
 public:
  FromBackup(Engine& engine, uint32_t job) : engine_(engine), job_(job) {}

  absl::StatusOr<Buffer> Allocate(ByteView header, size_t payload_bytes) override {
    SYNCLINE_ASSIGN_OR_RETURN(const MessageHeader parsed, ParseHeader(header));
    if (IsOwn(parsed)) return engine_.Allocate(header, payload_bytes);
    engine_.OnRefused(
        {Refusal::kIdentity, absl::StrCat("the backup of job ", job_),
         absl::StrCat("a backup spoke in the name of rank ", parsed.rank, " of job ",
                      parsed.job, "; what it sends so is dropped")});
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
      absl::StrCat("records of job ", header.job, " from somebody unknown"));
  if (KindOf(header) == MessageKind::kRecordAck) {
    const auto job = jobs_.find(header.job);
    const bool is_ours = job != jobs_.end() && job->second.records != nullptr &&
                         IsBy(header, job->second.records->name());
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
    if (since == Backups::kAnew) job->second.records = std::make_unique<RecordSender>();
    if (job->second.records == nullptr) return;
    auto& from_backup = job->second.from_backup;
    if (from_backup == nullptr) from_backup = std::make_shared<FromBackup>(*this, id);
    const auto lost = [this, id](const absl::Status& status) {
      events_.on_backup_lost(id, absl::StrCat("the connection to it broke: ",
                                              std::string(status.message())));
    };
    auto endpoint =
        transport_->Connect(address, {.on_failure = lost,
                                      .receiver = from_backup.get(),
                                      .key = {EncodeIdentity(SenderOf(id, as)), as.key}});
    if (!endpoint.ok()) return lost(endpoint.status());
    job->second.records->Connect(*std::move(endpoint), NameOf(id, as),
                                 transport_->address());
    if (since == Backups::kFromTheFirst) return;
    job->second.sinks.Want(RecordSinks::Pass::kBackup);
    BeginPass(id, job->second);
  });
}

// ---- What a shard is, for a sink that knows nothing ----

void Engine::RecordAnew(uint32_t id, std::function<bool()> begin) {
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
  switch (job.sinks.Answered(backed_up)) {
    case RecordSinks::Pass::kJournal:  // it goes on once the disk has taken something
      job.has_more = backed_up.more;
      if (!backed_up.more) events_.on_recorded(id, backed_up);
      break;
    case RecordSinks::Pass::kSnapshot:
      events_.on_recorded(id, backed_up);
      break;
    case RecordSinks::Pass::kBackup:
      if (!backed_up.more) events_.on_backed_up(id, job.records->name().session_key);
      break;
    case RecordSinks::Pass::kNone:
      break;
  }
  const bool goes_on = backed_up.more && job.sinks.pass() == RecordSinks::Pass::kBackup;
  // Not at once: others are to get their turns.
  loop_->Post([this, id, goes_on](Transport&) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    if (goes_on) GoOnWith(id, found->second, RecordSinks::Pass::kBackup);
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

void Engine::StopRecords(uint32_t id) {
  loop_->Post([this, id](Transport&) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end() || job->second.records == nullptr) return;
    job->second.records.reset();
    job->second.sinks.Lose(RecordSinks::Sink::kBackup);
    if (const auto news = job->second.sinks.News()) Run(id, job->second, *news);
    if (std::exchange(job->second.has_more, false)) {
      GoOnWith(id, job->second, RecordSinks::Pass::kJournal);
    }
    BeginPass(id, job->second);
  });
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

// Over TCP it goes back on the connection that it came on. That it broke says nothing: the
// server may be dead, and then this backup is what is left. A living one notices itself.
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
  // Its job may have ended since.
  if (!CheckBackup(header, payload.size).ok()) return;
  bytes_.fetch_add(kMessageHeaderBytes + payload.size, std::memory_order_relaxed);
  if (KindOf(header) == MessageKind::kRecordAck) {
    Job& job = jobs_.at(header.job);
    const std::optional<uint64_t> records = job.records->Acknowledged(header.step);
    if (!records) return;
    job.sinks.Durable(RecordSinks::Sink::kBackup, *records);
    if (const auto news = job.sinks.News()) Run(header.job, job, *news);
    // The disk has taken it before.
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
    return events_.on_backup_lost(header.job, std::string(has_room.status().message()));
  }
  if (*has_room) SendAck(header.job, backup);
}

}  // namespace syncline
