#include "server/links/record_sinks.h"

#include <algorithm>
#include <limits>
#include <variant>

namespace syncline {
namespace {

constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

// Returns whether the record is a state, which a sink that has the shard's records knows.
bool IsState(const ShardRecord& record) {
  return std::holds_alternative<BlockStateRecord>(record.what) ||
         std::holds_alternative<JobStateRecord>(record.what);
}

}  // namespace

RecordSinks::RecordSinks(bool journal, bool backup) {
  Of(Sink::kJournal).is_awaited = journal;
  Of(Sink::kFirstBackup).is_awaited = backup;
  if (AwaitsAny()) told_ = 0;
}

std::optional<size_t> RecordSinks::BackupOf(Pass pass) {
  if (pass == Pass::kFirstBackup) return 0;
  if (pass == Pass::kSecondBackup) return 1;
  return std::nullopt;
}

bool RecordSinks::AwaitsAny() const {
  return std::ranges::any_of(states_, &State::is_awaited);
}

// Records that were left out count as durable together with the record before them.
void RecordSinks::State::Settle() {
  while (!left_out.empty() && left_out.front().first <= durable) {
    left_out_safe += left_out.front().second;
    left_out.pop_front();
  }
}

bool RecordSinks::IsFor(const ShardRecord& record, Sink sink, State& state) const {
  if (!state.blocks) {
    const bool is_its_snapshot = sink == Sink::kJournal && pass_ == Pass::kSnapshot;
    return !IsState(record) || is_its_snapshot;
  }
  const std::optional<uint32_t> block = BlockOf(record);
  if (!block) return true;
  const bool begins = std::holds_alternative<BlockStateRecord>(record.what) ||
                      std::holds_alternative<SeedRecord>(record.what);
  if (begins) state.blocks->insert(*block);
  return state.blocks->contains(*block);
}

bool RecordSinks::Offer(const ShardRecord& record, Sink sink) {
  State& state = Of(sink);
  if (!state.is_awaited) return false;
  if (IsFor(record, sink, state)) {
    ++state.taken;
    return true;
  }
  if (!state.left_out.empty() && state.left_out.back().first == state.taken) {
    ++state.left_out.back().second;
  } else {
    state.left_out.emplace_back(state.taken, 1);
  }
  state.Settle();
  return false;
}

RecordSinks::Takers RecordSinks::Take(const ShardRecord& record) {
  ++given_;
  return {
      .journal = Offer(record, Sink::kJournal),
      .backups = {Offer(record, Sink::kFirstBackup), Offer(record, Sink::kSecondBackup)}};
}

void RecordSinks::Durable(Sink sink, uint64_t records) {
  State& state = Of(sink);
  if (!state.is_awaited) return;
  state.durable = std::max(state.durable, std::min(records, state.taken));
  state.Settle();
}

void RecordSinks::Lose(Sink sink) {
  Of(sink) = {};
  std::erase_if(wanted_, [sink](Pass pass) { return SinkOf(pass) == sink; });
  if (pass_ != Pass::kNone && SinkOf(pass_) == sink) pass_ = Pass::kNone;
}

std::optional<ShardDurable> RecordSinks::News() {
  uint64_t safe = kAll;
  for (const State& state : states_) {
    if (state.is_awaited) safe = std::min(safe, state.safe());
  }
  if (told_ == kAll || safe <= told_) return std::nullopt;
  told_ = safe;
  // The shard forgets what it was asked.
  if (safe == kAll) is_asked_ = false;
  return ShardDurable{safe};
}

// ---- Passes ----

std::optional<ShardBackUp::Kind> RecordSinks::NextOrder() {
  if (!awaits(Sink::kJournal)) wanted_.erase(Pass::kSnapshot);
  if (pass_ != Pass::kNone || is_asked_ || wanted_.empty()) return std::nullopt;
  pass_ = *wanted_.begin();
  wanted_.erase(wanted_.begin());
  is_asked_ = true;
  if (pass_ == Pass::kSnapshot) return ShardBackUp::Kind::kSnapshot;
  State& begun = Of(SinkOf(pass_));
  begun = {};
  const bool is_beside = AwaitsAny();
  if (!is_beside) given_ = told_ = 0;
  begun.is_awaited = true;
  begun.base = given_;
  begun.blocks.emplace();
  return is_beside ? ShardBackUp::Kind::kBeside : ShardBackUp::Kind::kBegin;
}

void RecordSinks::Decline() {
  is_asked_ = false;
  if (pass_ == Pass::kSnapshot) {
    pass_ = Pass::kNone;
    return;
  }
  Lose(SinkOf(pass_));
  if (!AwaitsAny()) told_ = kAll;
}

bool RecordSinks::Continue(Pass pass) {
  if (pass_ != pass || is_asked_) return false;
  is_asked_ = true;
  return true;
}

RecordSinks::Pass RecordSinks::Answered(const ShardBackedUp& backed_up) {
  is_asked_ = false;
  const Pass answered = pass_;
  if (backed_up.more || answered == Pass::kNone) return answered;
  if (answered != Pass::kSnapshot) Of(SinkOf(answered)).blocks.reset();
  pass_ = Pass::kNone;
  return answered;
}

}  // namespace syncline
