#include "server/coordinator/newcomers.h"

#include <algorithm>

namespace syncline {
namespace {

constexpr int kMaxDoublings = 6;
// A name is forgotten so many failure timeouts after its last copy. This is longer than
// any pause, so that pauses grow to the longest one and stay there.
constexpr int kMemory = 4 << kMaxDoublings;

}  // namespace

const Newcomers::Given* Newcomers::Find(const std::string& name,
                                        absl::Duration now) const {
  const auto found = given_.find(name);
  if (found == given_.end()) return nullptr;
  const Given& given = found->second;
  return now - given.last_at > kMemory * failure_timeout_ ? nullptr : &given;
}

void Newcomers::Give(const JobServer& server, absl::Duration now) {
  std::erase_if(given_,
                [&](const auto& entry) { return Find(entry.first, now) == nullptr; });
  Given& given = given_[server.name];
  if (given.lives == 0 || given.server != server.server) ++given.lives;
  given.server = server.server;
  given.last_at = now;
}

bool Newcomers::IsSteady(const JobServer& server, absl::Duration now) const {
  const Given* const given = Find(server.name, now);
  if (given != nullptr && given->server == server.server) return true;
  const int doublings = given == nullptr ? 0 : std::min(given->lives, kMaxDoublings);
  return now - server.attached_at >= (1 << doublings) * failure_timeout_;
}

bool Newcomers::IsUnsteadyAgain(const JobServer& server, absl::Duration now) const {
  return Find(server.name, now) != nullptr && !IsSteady(server, now);
}

}  // namespace syncline
