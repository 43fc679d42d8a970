// Journals of jobs that also have backups, as in ServerNode and Journal (ADR 38). They
// are on the disk of the host, together with journals of other places.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/server_process.h"

namespace syncline::sim {
namespace {

// Returns the complete journal of the highest generation; null: none is complete.
std::shared_ptr<JournalDisk> WhatCounts(
    const std::vector<std::shared_ptr<JournalDisk>>& journals) {
  std::shared_ptr<JournalDisk> best;
  for (const auto& one : journals) {
    const bool is_better = best == nullptr || one->generation > best->generation;
    if (one->is_whole && is_better) best = one;
  }
  return best;
}

}  // namespace

bool ServerProcess::HasJournal() const {
  return journal_ != nullptr && journal_->is_whole &&
         std::ranges::all_of(engines_,
                             [](const auto& one) { return one->has_journal(); });
}

void ServerProcess::ListJournals(ServerHello& hello) const {
  constexpr uint32_t kClaimed = 300;  // planted fault: generations that do not exist
  for (const auto& [first_shard, journals] : parts_.host_disk->places) {
    const auto best = WhatCounts(journals);
    if (best == nullptr) continue;
    const bool lies = parts_.fault == Fault::kStaleJournal;
    for (uint32_t of = best->generation; of <= best->generation + (lies ? kClaimed : 0);
         ++of) {
      JournaledRun run = {parts_.job, "run", {}, {}};
      for (uint32_t i = 0; i < best->shards.size(); ++i) {
        run.shards.push_back(first_shard + i);
        run.generations.push_back(of);
      }
      hello.journals.push_back(std::move(run));
    }
  }
}

void ServerProcess::UseJournal(std::shared_ptr<JournalDisk> journal) {
  journal_ = std::move(journal);
  used_.push_back(journal_);
  for (size_t i = 0; i < engines_.size(); ++i) engines_[i]->UseDisk(journal_->shards[i]);
}

void ServerProcess::ForgetJournal() {
  journal_.reset();
  allowed_journal_.reset();
  begins_journal_.clear();
  journal_endings_ = 0;
}

absl::Status ServerProcess::OpenJournal(const ConfigureJob& configure) {
  auto& journals = parts_.host_disk->places[configure.first_shard];
  if (configure.restore_run.empty()) {
    journals = {std::make_shared<JournalDisk>()};
    journals.back()->is_whole = true;
    journals.back()->shards.resize(parts_.engines);
    UseJournal(journals.back());
    return absl::OkStatus();
  }
  // A place without blocks needs no journal.
  const auto is_of_it = [&](uint32_t shard) {
    return shard >= configure.first_shard &&
           shard < configure.first_shard + parts_.engines;
  };
  if (std::ranges::none_of(configure.placement->shard_of_block, is_of_it)) {
    journals = {std::make_shared<JournalDisk>()};
    journals.back()->generation = configure.generation;
    journals.back()->is_whole = true;
    journals.back()->shards.resize(parts_.engines);
    UseJournal(journals.back());
    return absl::OkStatus();
  }
  const auto found = WhatCounts(journals);
  const bool is_it = found != nullptr && found->generation == configure.generation;
  if (!is_it && (found == nullptr || parts_.fault != Fault::kStaleJournal)) {
    return absl::FailedPreconditionError("the job goes on from another journal");
  }
  UseJournal(found);
  return absl::OkStatus();
}

void ServerProcess::OnJournalEnded() {
  begins_journal_.clear();
  Tell(machine_.Report(JournalFailed{job_, "it is full", journal_endings_}));
}

void ServerProcess::Perform(const LoseJournal& journal) {
  if (!Has(journal.job)) return;
  for (const auto& engine : engines_) engine->LoseJournal();
}

void ServerProcess::Perform(const AllowJournal& journal) {
  if (Has(journal.job)) AllowNext(journal.generation);
}

void ServerProcess::Perform(const BeginJournal& journal) {
  if (Has(journal.job)) AllowNext(journal.generation);
}

void ServerProcess::AllowNext(uint32_t generation) {
  allowed_journal_ = generation;
  TryJournal();
}

// Tries after a random time, because a server checks only now and then.
void ServerProcess::TryJournal() {
  if (!allowed_journal_ || parts_.host_disk->is_full) return;
  const int micros = std::uniform_int_distribution<int>(0, 50000)(random_);
  After(absl::Microseconds(micros), [this] {
    if (!configured_ || !allowed_journal_ || parts_.host_disk->is_full) return;
    auto& journals = parts_.host_disk->places[first_shard_];
    std::erase_if(journals, [](const auto& one) { return !one->is_whole; });
    journals.push_back(std::make_shared<JournalDisk>());
    journal_ = journals.back();
    used_.push_back(journal_);
    journal_->generation = *std::exchange(allowed_journal_, std::nullopt);
    journal_->shards.resize(engines_.size());
    begins_journal_ = AllEngines();
    for (size_t i = 0; i < engines_.size(); ++i) {
      engines_[i]->BeginJournalAnew(journal_->shards[i]);
    }
  });
}

void ServerProcess::OnWhole() {
  uint32_t generation = 0;
  if (journal_ != nullptr && parts_.host_disk != nullptr) {
    journal_->is_whole = true;
    auto& journals = parts_.host_disk->places[first_shard_];
    std::erase_if(journals, [&](const auto& one) { return one != journal_; });
    generation = journal_->generation;
  }
  Tell(machine_.Report(JournalCompleted{job_, generation}));
}

}  // namespace syncline::sim
