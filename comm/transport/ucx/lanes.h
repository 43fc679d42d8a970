// Tells which of its transports UCX chose for an endpoint, and which it can choose from.
// UCX 1.13 has no call for this and only prints text for people, which is parsed here.
//
// Thread safety: functions without state.
#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <vector>

namespace syncline {

// Returns the lanes of an endpoint, such as "sysv/memory", "tcp/lo" and
// "rc_mlx5/mlx5_0:1", each once and in UCX's order. Takes tens of microseconds, so it is
// not for the data path.
std::vector<std::string> LanesOf(ucp_ep_h endpoint);

// Returns the same from the text of ucp_ep_print_info.
std::vector<std::string> ParseLanes(const std::string& info);

// Returns what a context can build endpoints from, such as "posix/memory" and "tcp/eth0",
// each once. Empty if UCX prints it in an unknown form.
std::vector<std::string> ResourcesOf(ucp_context_h context);

// Returns the same from the text of ucp_context_print_info.
std::vector<std::string> ParseResources(const std::string& info);

}  // namespace syncline
