// Backups in another server's memory, as ServerNode and Engine have them.
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/journal/record_bytes.h"
#include "tests/sim/server_process.h"

namespace syncline::sim {
namespace {

constexpr uint64_t kLostRecord = 5;  // Fault::kLosesRecord

}  // namespace

void ServerProcess::OnBackup(const CoordinatorBody& body) {
  if (const auto* hold = std::get_if<HoldBackup>(&body)) parts_.on_hold(*hold);
  if (shard_ == nullptr) return;
  if (const auto* at = std::get_if<BackupAt>(&body)) SendRecords(*at);
  if (std::holds_alternative<BackupGone>(body)) GoOnWithoutBackup();
  if (std::holds_alternative<TakeOver>(body)) TakeOverFromBackup();
}

// ---- Of a server ----

void ServerProcess::SendRecords(const BackupAt& at) {
  if (at.anew) {
    parts_.disk.records.clear();
    parts_.disk.synced = begun_at_ = 0;
    records_ = std::make_unique<RecordSender>();
    says_loss_ = true;
    has_all_records_ = false;
  }
  const auto on_failure = [this](const absl::Status& status) {
    After(absl::ZeroDuration(), [this, why = std::string(status.message())] {
      SayLost(absl::StrCat("the connection to it broke: ", why));
    });
  };
  auto endpoint = transport_->Connect(at.addresses.front(), {.on_failure = on_failure});
  if (!endpoint.ok()) return SayLost(std::string(endpoint.status().message()));
  records_->Connect(*std::move(endpoint),
                    NameOfRecords(at.job, at.pair.sender, at.pair.session_key),
                    transport_->address());
  if (at.anew) Run(ShardBackUp{});
}

void ServerProcess::OnBackedUp(const ShardBackedUp& backed_up) {
  if (records_ == nullptr) return;
  const bool says_so = !backed_up.more || parts_.fault == Fault::kHalfBackup;
  if (says_so) {
    parts_.control.Send(connection_, BackedUp{job_, records_->name().session_key});
  }
  has_all_records_ = !backed_up.more;
  if (!backed_up.more) return;
  After(absl::ZeroDuration(), [this] {
    if (shard_ != nullptr && records_ != nullptr) {
      Run(ShardBackUp{ShardBackUp::Kind::kNext});
    }
  });
}

void ServerProcess::GoOnWithoutBackup() {
  if (shard_ == nullptr || records_ == nullptr) return;
  records_.reset();
  has_all_records_ = false;  // none follow
  Run(ShardDurable{~uint64_t{0}});
}

void ServerProcess::SayLost(const std::string& why) {
  if (shard_ == nullptr || !std::exchange(says_loss_, false)) return;
  parts_.control.Send(connection_, BackupLost{job_, why});
}

// ---- Of a stand-in ----

void ServerProcess::OfBackup(const MessageHeader& header, const Buffer& payload) {
  if (header.kind == static_cast<uint16_t>(MessageKind::kRecordAck)) {
    const bool is_ours =
        records_ != nullptr && header.session_key == records_->name().session_key;
    if (!is_ours) return;  // of one before
    const auto records = records_->Acknowledged(header.step);
    if (records) Run(ShardDurable{*records});
    return;
  }
  if (!pair_ || header.session_key != pair_->session_key) return;
  if (header.kind == static_cast<uint16_t>(MessageKind::kRecord)) {
    return TakeRecord(header, payload);
  }
  const std::string address(reinterpret_cast<const char*>(payload.data()),
                            payload.size());
  auto endpoint = transport_->Connect(address, {});
  if (endpoint.ok()) answers_ = *std::move(endpoint);
}

void ServerProcess::TakeRecord(const MessageHeader& header, const Buffer& payload) {
  auto bytes = receiver_.Take(header, {payload.data(), payload.size()});
  if (!bytes.ok()) return SayLost(std::string(bytes.status().message()));
  if (!*bytes) return;
  auto record = ReadRecord(**bytes);
  if (!record.ok()) return SayLost(std::string(record.status().message()));
  const bool is_lost =
      parts_.fault == Fault::kLosesRecord && receiver_.records() == kLostRecord;
  if (!is_lost) {
    parts_.disk.records.push_back(
        std::make_shared<const ShardRecord>(*std::move(record)));
  }
  if (answers_ == nullptr) return;
  MessageHeader ack = NameOfRecords(job_, pair_->sender, pair_->session_key);
  ack.kind = static_cast<uint16_t>(MessageKind::kRecordAck);
  ack.step = receiver_.records();
  answers_->Send(SealHeader(ack), {}, [](const absl::Status&) {});
}

void ServerProcess::TakeOverFromBackup() {
  pair_.reset();
  answers_.reset();
  const absl::StatusOr<uint64_t> step = Restore();
  if (step.ok()) {
    parts_.control.Send(connection_, JobConfigured{job_, *step});
  } else {
    parts_.control.Send(connection_, ConfigureFailed{job_, step.status()});
  }
}

// The coordinator wants it no more.
void ServerProcess::EndStandIn() {
  pair_.reset();
  shard_.reset();
  workers_.clear();
}

}  // namespace syncline::sim
