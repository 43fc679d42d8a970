// Converts messages about backups (server/coordinator/backup.h) to and from the wire.
#pragma once

#include "proto/coordinator.pb.h"
#include "server/coordinator/backup.h"

namespace syncline {

void Write(const BackupPair& pair, v1::BackupPair& out);
// If the key is malformed, the result has an empty key, which opens nothing.
BackupPair Read(const v1::BackupPair& in);

void Write(const StandInFor& stand_in, v1::StandIn& out);
StandInFor Read(const v1::StandIn& in);

void Write(const BackupLost& lost, v1::BackupLost& out);
BackupLost Read(const v1::BackupLost& in);

void Write(const BackedUp& backed_up, v1::BackedUp& out);
BackedUp Read(const v1::BackedUp& in);

void Write(const JournalLost& lost, v1::JournalLost& out);
JournalLost Read(const v1::JournalLost& in);
void Write(const JournalWhole& whole, v1::JournalWhole& out);
JournalWhole Read(const v1::JournalWhole& in);
void Write(const JournalGone& gone, v1::JournalGone& out);
JournalGone Read(const v1::JournalGone& in);
void Write(const HoldBackup& hold, v1::HoldBackup& out);
HoldBackup Read(const v1::HoldBackup& in);

void Write(const BackupAt& at, v1::BackupAt& out);
BackupAt Read(const v1::BackupAt& in);

void Write(const BackupGone& gone, v1::BackupGone& out);
BackupGone Read(const v1::BackupGone& in);

void Write(const TakeOver& take, v1::TakeOver& out);
TakeOver Read(const v1::TakeOver& in);

}  // namespace syncline
