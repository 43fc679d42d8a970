// What a server has to do with checkpoints: it writes the copies that its shards make, and
// reads what they begin with.
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "server/checkpoint/load.h"
#include "server/checkpoint/reader.h"
#include "server/service/checkpoint_layout.h"
#include "server/service/server_node.h"

namespace syncline {
namespace {

ShardCut::Kind KindOf(const CutAt& cut) {
  if (cut.again) return ShardCut::Kind::kLastAgain;
  return cut.last ? ShardCut::Kind::kLast : ShardCut::Kind::kCopy;
}

}  // namespace

absl::Status ServerNode::AddCheckpoints(const ConfigureJob& configure,
                                        std::vector<EngineJobOptions>& parts) {
  const JobSpec& spec = configure.declared->spec;
  if (configure.checkpoint_run == 0) return absl::OkStatus();
  if (saver_ == nullptr) {
    if (!spec.settings.checkpoint_every.IsScheduled() && !configure.resume_from)
      return absl::OkStatus();
    return absl::FailedPreconditionError(
        "this server has no place for checkpoints, and the coordinator has one; start it "
        "with the same --checkpoint-dir");
  }
  SYNCLINE_ASSIGN_OR_RETURN(const auto layout, LayoutOf(spec));
  CheckpointSaver::SavedJob saved = {.job = configure.job,
                                     .name = spec.name,
                                     .run = configure.checkpoint_run,
                                     .first_shard = configure.first_shard,
                                     .layout = layout};
  for (EngineJobOptions& part : parts) {
    part.shard.cut_every = spec.CutEvery();
    saved.blocks.push_back(part.blocks);
  }
  saver_->Begin(std::move(saved));
  if (!configure.resume_from) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(
      std::shared_ptr<const CheckpointReader> reader,
      CheckpointReader::Open(*options_.checkpoints, spec.name, *configure.resume_from));
  SYNCLINE_RETURN_IF_ERROR(reader->CheckTensors(layout->tensors));
  for (EngineJobOptions& part : parts) {
    if (part.blocks.empty()) continue;
    part.load = [reader, layout, blocks = part.blocks](Shard& shard) {
      return LoadBlocks(*reader, *layout, blocks, shard);
    };
  }
  return absl::OkStatus();
}

void ServerNode::On(const CutAt& cut) {
  {
    absl::MutexLock lock(&mutex_);
    const auto job = jobs_.find(cut.job);
    if (job != jobs_.end()) job->second.memory.Cut(cut.step);
  }
  if (saver_ != nullptr) {
    if (cut.again) saver_->BeginLast(cut.job, cut.step);
    return ApplyToAll(cut.job, ShardCut{.step = cut.step, .kind = KindOf(cut)});
  }
  OnWritten({.job = cut.job,
             .step = cut.step,
             .status = absl::FailedPreconditionError(absl::StrCat(
                 "server ", options_.name, " was started without --checkpoint-dir"))});
}

bool ServerNode::SaveOutput(uint32_t engine, uint32_t job, const ShardOutput& output) {
  if (const auto* done = std::get_if<ShardCutDone>(&output)) {
    saver_->Take(job, engine, *done);
    return true;
  }
  const auto* copied = std::get_if<ShardCopied>(&output);
  if (copied == nullptr) return false;
  const CheckpointSaver::Taken taken = saver_->Take(job, engine, *copied);
  if (copied->more && !taken.is_kept) CopyNext(job, engine, copied->step);
  if (!taken.is_first) return true;
  // Those that train nothing have no versions of their own.
  for (uint32_t other = 0; other < engines_.size(); ++other) {
    if (other != engine) engines_[other]->Apply(job, ShardCut{copied->step});
  }
  return true;
}

// After what waits for this engine.
void ServerNode::CopyNext(uint32_t job, uint32_t engine, uint64_t step) {
  engines_[engine]->Apply(job,
                          ShardCut{.step = step, .kind = ShardCut::Kind::kNextFrozen});
}

void ServerNode::OnWritten(CheckpointWritten written) {
  if (journal_ != nullptr && written.status.ok()) {
    journal_->Saved(written.job, written.step);
  }
  absl::MutexLock lock(&mutex_);
  const auto job = jobs_.find(written.job);
  if (job == jobs_.end()) return;
  job->second.memory.Cut(written.step);
  outbox_.emplace_back(std::move(written));
  changed_.SignalAll();
}

}  // namespace syncline
