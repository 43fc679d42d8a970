// Decides where the records of a shard go (its journal, its backup, or both; ADR 38), and
// how far they are durable. A record is durable when every awaited sink that it is for
// has it. There may be two backups: one that counts, and one that is to replace it.
//
// A sink that begins while the shard runs gets the shard's state block by block, in a
// pass (ShardBackUp). Only one pass is under way at a time. If another sink is awaited
// already, the new one gets a block's records only from the block's state on, and the
// other one gets no states.
//
//   sinks.Want(RecordSinks::Pass::kFirstBackup);
//   while (auto order = sinks.NextOrder()) Run(ShardBackUp{*order});
//   ... ShardRecorded: const auto takers = sinks.Take(record) ...
//   ... after each of these: if (auto safe = sinks.News()) Run(*safe);
//
// Thread safety: none. It does no input or output.
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
  enum class Sink { kJournal, kFirstBackup, kSecondBackup };
  static constexpr size_t kBackups = 2;
  static Sink BackupSink(size_t which) {
    return which == 0 ? Sink::kFirstBackup : Sink::kSecondBackup;
  }
  // In the order in which passes begin that are due at once. Backups come first, because
  // they wait for no disk.
  enum class Pass { kNone, kFirstBackup, kSecondBackup, kJournal, kSnapshot };
  static Pass BackupPass(size_t which) {
    return which == 0 ? Pass::kFirstBackup : Pass::kSecondBackup;
  }
  // Which backup the pass is for; nothing: it is not for a backup.
  static std::optional<size_t> BackupOf(Pass pass);

  RecordSinks() = default;
  // The given sinks get the records from the first one on; a backup is the first one.
  RecordSinks(bool journal, bool backup);

  bool awaits(Sink sink) const { return Of(sink).is_awaited; }
  // The sinks that a record is for.
  struct Takers {
    bool journal = false;
    std::array<bool, kBackups> backups = {};
  };
  // Returns the sinks that get a record which the shard has just given out.
  Takers Take(const ShardRecord& record);
  // Notes that the sink has made its first `records` records durable, counted since it
  // began.
  void Durable(Sink sink, uint64_t records);
  // Stops waiting for the sink; it gets no more records.
  void Lose(Sink sink);
  // Returns what the shard must be told; nothing if that has not changed.
  std::optional<ShardDurable> News();

  // ---- Passes ----

  // Requests that the sink begins, or that the journal gets a snapshot, once no other
  // pass is under way.
  void Want(Pass pass) { wanted_.insert(pass); }
  // Begins a pass that is due, and returns the order for the shard.
  std::optional<ShardBackUp::Kind> NextOrder();
  // Cancels the pass that NextOrder began last.
  void Decline();
  Pass pass() const { return pass_; }
  // Returns whether the shard may be told to continue that pass, and notes that it is
  // told.
  bool Continue(Pass pass);
  // Returns the pass that the shard has answered. kNone: one that was given up.
  Pass Answered(const ShardBackedUp& backed_up);

 private:
  struct State {
    bool is_awaited = false;
    uint64_t base = 0;  // records of the shard before the sink began
    uint64_t taken = 0;
    uint64_t durable = 0;  // of those that it took
    // Pairs (n, m): after its first n records, m records of the shard were not for it.
    std::deque<std::pair<uint64_t, uint64_t>> left_out = {};
    uint64_t left_out_safe = 0;  // of those: before what is durable
    // Blocks whose records it gets. Empty optional: all blocks.
    std::optional<std::set<uint32_t>> blocks = {};

    uint64_t safe() const { return base + durable + left_out_safe; }
    void Settle();
  };

  const State& Of(Sink sink) const { return states_[static_cast<size_t>(sink)]; }
  State& Of(Sink sink) { return states_[static_cast<size_t>(sink)]; }
  static Sink SinkOf(Pass pass) {
    const auto backup = BackupOf(pass);
    return backup ? BackupSink(*backup) : Sink::kJournal;
  }
  bool IsFor(const ShardRecord& record, Sink sink, State& state) const;
  bool Offer(const ShardRecord& record, Sink sink);
  bool AwaitsAny() const;

  std::array<State, 1 + kBackups> states_ = {};
  uint64_t given_ = 0;  // records since the shard began to count
  uint64_t told_ = ~uint64_t{0};
  Pass pass_ = Pass::kNone;
  bool is_asked_ = false;  // the shard was asked and has not answered
  std::set<Pass> wanted_ = {};
};

}  // namespace syncline
