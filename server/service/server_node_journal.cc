// What a server has to do with journals: the records of its shards are written down, and
// how far they are is shown.
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/rpc/announcement.h"
#include "server/service/server_node.h"

namespace syncline {

absl::Status ServerNode::AddJournal(const ConfigureJob& configure,
                                    const std::string& specification,
                                    std::vector<EngineJobOptions>& parts) {
  const JobSpec& spec = configure.declared->spec;
  if (!spec.IsJournaled()) return absl::OkStatus();
  if (journal_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job '", spec.name, "' asks for durability=disk, and server ", options_.name,
        " has no place for a journal; start all servers with --journal-dir, or the job "
        "with durability=none"));
  }
  JournaledJob job = {.job = configure.job};
  job.head = {.job = spec.name,
              .specification = specification,
              .created_unix_ms = absl::ToUnixMillis(absl::Now()),
              .shard = configure.first_shard,
              .checkpoint_run = configure.checkpoint_run,
              .began_from = configure.resume_from};
  for (EngineJobOptions& part : parts) {
    part.shard.records = Records::kKept;
    std::vector<uint32_t>& blocks = job.blocks.emplace_back();
    std::vector<uint32_t>& trained = job.trained.emplace_back();
    for (const ShardBlock& block : part.blocks) {
      blocks.push_back(block.block);
      const bool is_frozen = spec.tensors[block.range.tensor].group.frozen;
      if (!is_frozen) trained.push_back(block.block);
    }
  }
  const absl::Status begun = journal_->Begin(std::move(job));
  if (begun.ok()) return begun;
  return absl::FailedPreconditionError(absl::StrCat(
      "server ", options_.name, " has no place for the journal of job '", spec.name,
      "': ", std::string(begun.message()), "; check its --journal-dir"));
}

// Session keys are drawn at random for each life of a worker, so that no two runs have
// the same. What is shown of them is a digest.
void ServerNode::NameJournal(const CommitEpoch& commit) {
  if (journal_ == nullptr) return;
  std::string members = absl::StrCat(commit.job, " ", commit.epoch);
  for (const MemberRecord& member : commit.members) {
    absl::StrAppend(&members, " ", member.rank, " ", member.session_key);
  }
  journal_->Name(commit.job, absl::BytesToHexString(Sha256(members).substr(0, 8)));
}

void ServerNode::ShowJournals() const {
  if (journal_ == nullptr || options_.metrics == nullptr) return;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, job] : jobs_) {
    const auto state = journal_->State(id);
    if (!state) continue;
    options_.metrics->SetJournal(id, {.durable_step = state->durable,
                                      .lag_steps = state->lag(),
                                      .bytes = state->bytes,
                                      .has_failed = !state->error.empty()});
  }
}

}  // namespace syncline
