// Converts what members report when they return to a restarted coordinator, and the
// decisions that are part of it.
#pragma once

#include <optional>

#include "proto/coordinator.pb.h"
#include "server/coordinator/coordinator.h"

namespace syncline {

void WriteMembership(const HeldMembership& member, v1::HeldMembership& out);
std::optional<HeldMembership> ReadMembership(const v1::WorkerHello& hello);

void WriteClosed(const StepClosed& closed, v1::StepClosed& out);
StepClosed ReadClosed(const v1::StepClosed& in);
void WriteStepHeld(const StepHeld& held, v1::StepHeld& out);
StepHeld ReadStepHeld(const v1::StepHeld& in);
void WriteDecision(const StepDecision& decision, v1::StepDecision& out);
StepDecision ReadDecision(const v1::StepDecision& in);

// REQUIRES: the hello has an identity.
void WriteHeld(const ServerHello& hello, v1::HeldServer& out);
void ReadHeld(const v1::HeldServer& in, ServerHello& hello);

void WriteJournals(const ServerHello& hello, v1::ServerHello& out);
void ReadJournals(const v1::ServerHello& in, ServerHello& hello);
// Each moved shard gets the key that this worker shares with the shard's new server.
void WriteMoves(const EpochChanged& change, v1::EpochChanged& out);

}  // namespace syncline
