// The part of a session that saves and restores error feedback.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/client/residual_file.h"
#include "worker/client/session_impl.h"

namespace syncline {

absl::Status Session::Impl::CheckQuiet() const {
  SYNCLINE_RETURN_IF_ERROR(CheckRunning());
  if (std::ranges::all_of(tensors_, &Tensor::ready)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the residuals of compression are in use while gradients are under way; call "
      "WaitAll first");
}

absl::Status Session::Impl::WithMemories(
    const std::function<absl::Status(DataPlane::Memories)>& use) {
  {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(CheckQuiet());
  }
  return data_plane_->WithMemories(use, options_.failure_timeout);
}

// Tensors are never removed or renamed once the session runs.
std::string Session::Impl::NameOf(uint32_t tensor) {
  absl::MutexLock lock(&mutex_);
  return tensors_[tensor].options.name;
}

absl::Status Session::Impl::SaveResiduals(const std::string& path) {
  const std::string codec = CanonicalTransfer(options_.settings.push_codec);
  return WithMemories([&](DataPlane::Memories memories) {
    std::vector<ResidualPart> parts;
    std::vector<std::vector<GradientUnits>> units(memories.size());
    for (uint32_t i = 0; i < memories.size(); ++i) {
      const GradientMemory& memory = *memories[i];
      if (memory.residual().empty()) continue;
      units[i] = memory.units();
      parts.push_back({.tensor = NameOf(i),
                       .codec = codec,
                       .kept = {.residual = memory.residual(),
                                .velocity = memory.velocity(),
                                .units = units[i]}});
    }
    return WriteResiduals(path, parts);
  });
}

absl::Status Session::Impl::RestoreResiduals(const std::string& path) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<SavedResidual> saved, ReadResiduals(path));
  const std::string codec = CanonicalTransfer(options_.settings.push_codec);
  return WithMemories([&](DataPlane::Memories memories) {
    for (uint32_t i = 0; i < memories.size(); ++i) {
      if (memories[i]->residual().empty()) continue;
      const std::string name = NameOf(i);
      const auto part = std::ranges::find(saved, name, &SavedResidual::tensor);
      const bool fits = part != saved.end() && part->codec == codec &&
                        memories[i]->Restore(part->kept());
      if (fits) continue;
      options_.log.Warning(
          "starts without the residuals of compression: they were saved with another "
          "codec or shape, or not at all",
          {{"tensor", name}, {"file", path}});
    }
    return absl::OkStatus();
  });
}

}  // namespace syncline
