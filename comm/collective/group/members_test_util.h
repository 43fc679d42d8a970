// Helpers that create the members of a test's group. Tests only.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/collective/group/group.h"

namespace syncline::collective {

struct Members {
  int ranks = 1;
  // Ranks per host; the first host has `missing` fewer. 0: all share one host.
  int per_host = 0;
  int missing = 0;
  TcpSecurity security = TcpSecurity::kTls;
  bool exact_order = false;
  absl::Duration failure_timeout = absl::Seconds(10);

  GroupOptions Options(const std::string& name, int rank, Store* store) const {
    GroupOptions options = {.name = name, .rank = rank, .ranks = ranks, .store = store};
    options.address = "127.0.0.1";
    options.security = security;
    options.exact_order = exact_order;
    options.failure_timeout = failure_timeout;
    if (per_host > 0) options.host = absl::StrCat("host", (rank + missing) / per_host);
    return options;
  }

  std::string Name() const {
    return absl::StrCat(ranks, "Ranks",
                        per_host > 0 ? absl::StrCat(per_host, "PerHost") : "",
                        missing > 0 ? absl::StrCat("But", missing) : "",
                        security == TcpSecurity::kPlain ? "Plain" : "");
  }
};

inline void PrintTo(const Members& members, std::ostream* out) { *out << members.Name(); }

// Runs all ranks as threads, each with its member of a new group. Returns the result of
// each rank's body.
inline std::vector<absl::Status> RunMembers(
    const Members& members, const std::function<absl::Status(Group&)>& body) {
  MemoryStore store;
  std::vector<absl::Status> statuses(static_cast<size_t>(members.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < members.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto group = Group::Create(members.Options("test", rank, &store));
      statuses[static_cast<size_t>(rank)] = group.ok() ? body(**group) : group.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace syncline::collective
