// Where the records of a shard go, and how far they are safe: in its journal, with its
// backup, or in both (ADR 38). What is safe is what all have that are awaited.
//
// One that begins while the shard runs gets what the shard is, block by block, in a pass
// (ShardBackUp); there is one pass at a time. Beside another one that is awaited it gets a
// block's records from the block's state on, and the other one gets no states.
//
//   sinks.Want(RecordSinks::Pass::kBackup);
//   while (auto order = sinks.NextOrder()) Run(ShardBackUp{*order});
//   ... ShardRecorded: const auto takers = sinks.Take(record) ...
//   ... after each of these: if (auto safe = sinks.News()) Run(*safe);
//
// Thread safety: none; pure.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <utility>

#include "server/shard/record.h"
#include "server/shard/shard.h"

namespace syncline {

class RecordSinks {
 public:
  enum class Sink { kJournal, kBackup };
  // In the order of those that are due at once: a backup waits for no disk.
  enum class Pass { kNone, kBackup, kJournal, kSnapshot };

  RecordSinks() = default;
  // Those that get the records from the first one on.
  RecordSinks(bool journal, bool backup);

  bool awaits(Sink sink) const { return Of(sink).is_awaited; }
  // Of a record that the shard has given out.
  struct Takers {
    bool journal = false;
    bool backup = false;
  };
  Takers Take(const ShardRecord& record);
  // So many of those that it was given since it began are safe there.
  void Durable(Sink sink, uint64_t records);
  // It is not awaited any more, nor gets anything.
  void Lose(Sink sink);
  // What the shard is to be told, if that has changed.
  std::optional<ShardDurable> News();

  // ---- Passes ----

  // The sink begins, or the journal wants a snapshot: once no other pass is under way.
  void Want(Pass pass) { wanted_.insert(pass); }
  // Of a pass that is due: it begins. The shard is to be given the order.
  std::optional<ShardBackUp::Kind> NextOrder();
  // The one that NextOrder began last is none after all.
  void Decline();
  Pass pass() const { return pass_; }
  // Whether the shard may be told to go on with that pass.
  bool Continue(Pass pass);
  // Whose answer that is; kNone: of one that was given up.
  Pass Answered(const ShardBackedUp& backed_up);

 private:
  struct State {
    bool is_awaited = false;
    uint64_t base = 0;  // records of the shard before it began
    uint64_t taken = 0;
    uint64_t durable = 0;  // of those that it took
    // After so many of its own, so many of the shard's were not for it.
    std::deque<std::pair<uint64_t, uint64_t>> left_out = {};
    uint64_t left_out_safe = 0;  // of them: before what is durable
    // Blocks whose records it gets; none: of all.
    std::optional<std::set<uint32_t>> blocks = {};

    uint64_t safe() const { return base + durable + left_out_safe; }
    void Settle();
  };

  const State& Of(Sink sink) const { return states_[static_cast<size_t>(sink)]; }
  State& Of(Sink sink) { return states_[static_cast<size_t>(sink)]; }
  static Sink SinkOf(Pass pass) {
    return pass == Pass::kBackup ? Sink::kBackup : Sink::kJournal;
  }
  bool IsFor(const ShardRecord& record, Sink sink, State& state) const;
  bool Offer(const ShardRecord& record, Sink sink);
  bool AwaitsAny() const { return awaits(Sink::kJournal) || awaits(Sink::kBackup); }

  std::array<State, 2> states_ = {};
  uint64_t given_ = 0;  // records, since the shard counts
  uint64_t told_ = ~uint64_t{0};
  Pass pass_ = Pass::kNone;
  bool is_asked_ = false;  // the shard, and has not answered
  std::set<Pass> wanted_ = {};
};

}  // namespace syncline
