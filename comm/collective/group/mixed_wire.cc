#include "comm/collective/group/mixed_wire.h"

#include <poll.h>

#include <algorithm>
#include <ctime>
#include <utility>

namespace syncline::collective {

MixedWire::MixedWire(std::unique_ptr<SharedWire> near, std::unique_ptr<TcpWire> far,
                     std::unique_ptr<Bell> bell)
    : near_(std::move(near)), far_(std::move(far)), bell_(std::move(bell)) {
  const auto either = [](Lane* one, Lane* other) { return one != nullptr ? one : other; };
  lanes_[0] = far_->lanes();
  lanes_[1] = far_->direct_lanes();
  std::transform(near_->lanes().begin(), near_->lanes().end(), lanes_[0].begin(),
                 lanes_[0].begin(), either);
  std::transform(near_->direct_lanes().begin(), near_->direct_lanes().end(),
                 lanes_[1].begin(), lanes_[1].begin(), either);
}

std::vector<int> MixedWire::Behind(uint64_t sequence) const {
  std::vector<int> ranks = near_->Behind(sequence);
  const std::vector<int> far = far_->Behind(sequence);
  ranks.insert(ranks.end(), far.begin(), far.end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void MixedWire::Sleep(absl::Duration timeout) {
  const absl::Duration sleep = std::min(timeout, far_->MaySleep());
  if (sleep > absl::ZeroDuration()) {
    pollfd all[] = {{far_->fd(), POLLIN, 0}, {bell_->fd(), POLLIN, 0}};
    const timespec limit = absl::ToTimespec(sleep);
    ppoll(all, std::size(all), &limit, nullptr);
  }
  bell_->Hush();
  near_->Stay();
}

absl::Status MixedWire::Check(const std::vector<int>& ranks, const CallHeader* header) {
  std::vector<int> near;
  std::vector<int> far;
  for (const int rank : ranks) {
    (near_->peer(rank) != nullptr ? near : far).push_back(rank);
  }
  absl::Status status = near_->Check(near, header);
  status.Update(far_->Check(far, header));
  return status;
}

void MixedWire::Report(const absl::Status& status) {
  near_->Report(status);
  far_->Report(status);
}

}  // namespace syncline::collective
