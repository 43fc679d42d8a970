#include "server/service/backup_convert.h"

#include <span>
#include <string>

#include "comm/base/buffer.h"
#include "server/service/job_convert.h"

namespace syncline {

void Write(const BackupPair& pair, v1::BackupPair& out) {
  out.set_server(pair.sender.server);
  out.set_incarnation(pair.sender.incarnation);
  out.set_session_key(pair.session_key);
  const ByteView key = pair.key.bytes();
  out.set_key(std::string(reinterpret_cast<const char*>(key.data()), key.size()));
}

BackupPair Read(const v1::BackupPair& in) {
  const auto key = SecretKey::From(std::as_bytes(std::span(in.key())));
  return {.sender = {in.server(), in.incarnation()},
          .session_key = in.session_key(),
          .key = key.value_or(SecretKey())};
}

void Write(const StandInFor& stand_in, v1::StandIn& out) {
  out.set_job(stand_in.job);
  out.set_server(stand_in.server);
  out.set_order(stand_in.order);
}

StandInFor Read(const v1::StandIn& in) { return {in.job(), in.server(), in.order()}; }

void Write(const BackupLost& lost, v1::BackupLost& out) {
  out.set_job(lost.job);
  out.set_reason(SendableError(lost.reason));
  out.set_session_key(lost.session_key);
}

BackupLost Read(const v1::BackupLost& in) {
  return {in.job(), in.reason(), in.session_key()};
}

void Write(const BackedUp& backed_up, v1::BackedUp& out) {
  out.set_job(backed_up.job);
  out.set_session_key(backed_up.session_key);
}

BackedUp Read(const v1::BackedUp& in) { return {in.job(), in.session_key()}; }

void Write(const JournalLost& lost, v1::JournalLost& out) {
  out.set_job(lost.job);
  out.set_reason(SendableError(lost.reason));
}

JournalLost Read(const v1::JournalLost& in) { return {in.job(), in.reason()}; }

void Write(const JournalWhole& whole, v1::JournalWhole& out) {
  out.set_job(whole.job);
  out.set_generation(whole.generation);
}

JournalWhole Read(const v1::JournalWhole& in) { return {in.job(), in.generation()}; }

void Write(const JournalGone& gone, v1::JournalGone& out) {
  out.set_job(gone.job);
  out.set_generation(gone.generation);
}

JournalGone Read(const v1::JournalGone& in) { return {in.job(), in.generation()}; }

void Write(const HoldBackup& hold, v1::HoldBackup& out) {
  out.set_job(hold.job);
  out.set_server(hold.server);
  out.set_engines(hold.engines);
  out.set_order(hold.order);
  out.set_has_journal(hold.has_journal);
  out.set_restores(hold.restores);
}

HoldBackup Read(const v1::HoldBackup& in) {
  return {.job = in.job(),
          .server = in.server(),
          .engines = in.engines(),
          .order = in.order(),
          .has_journal = in.has_journal(),
          .restores = in.restores()};
}

void Write(const BackupAt& at, v1::BackupAt& out) {
  out.set_job(at.job);
  for (const std::string& address : at.addresses) out.add_addresses(address);
  Write(at.pair, *out.mutable_pair());
  out.set_anew(at.with_state);
}

BackupAt Read(const v1::BackupAt& in) {
  return {.job = in.job(),
          .addresses = {in.addresses().begin(), in.addresses().end()},
          .pair = Read(in.pair()),
          .with_state = in.anew()};
}

void Write(const BackupGone& gone, v1::BackupGone& out) {
  out.set_job(gone.job);
  out.set_reason(gone.reason);
  out.set_session_key(gone.session_key);
}

BackupGone Read(const v1::BackupGone& in) {
  return {in.job(), in.reason(), in.session_key()};
}

void Write(const TakeOver& take, v1::TakeOver& out) {
  out.set_job(take.job);
  out.set_run(take.run);
  out.set_generation(take.generation);
}

TakeOver Read(const v1::TakeOver& in) { return {in.job(), in.run(), in.generation()}; }

}  // namespace syncline
