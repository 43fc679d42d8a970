// Checkpoints: a server writes the copies that its shards make, and reads the checkpoint
// that they begin with.
#include <memory>
#include <utility>
#include <variant>

#include "comm/base/status.h"
#include "server/checkpoint/load.h"
#include "server/checkpoint/reader.h"
#include "server/service/checkpoint_layout.h"
#include "server/service/server_node.h"

namespace syncline {
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
                                     .resumed_from = configure.resume_from,
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

void ServerNode::Perform(const BeginLastCut& cut) {
  saver_->BeginLast(cut.job, cut.step);
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
  // Engines without trained blocks have no versions of their own.
  for (uint32_t other = 0; other < engines_.size(); ++other) {
    if (other != engine) engines_[other]->Apply(job, ShardCut{copied->step});
  }
  return true;
}

// The copy comes after all inputs that already wait for this engine.
void ServerNode::CopyNext(uint32_t job, uint32_t engine, uint64_t step) {
  engines_[engine]->Apply(job,
                          ShardCut{.step = step, .kind = ShardCut::Kind::kNextFrozen});
}

void ServerNode::OnWritten(CheckpointWritten written) {
  if (journal_ != nullptr && written.status.ok()) {
    journal_->Saved(written.job, written.step);
  }
  Report(std::move(written));
}

}  // namespace syncline
