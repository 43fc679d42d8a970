// Which transports UCX chose for an endpoint, and among which. UCX 1.13 has no call for it,
// only texts for humans.
#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <vector>

namespace syncline {

// "sysv/memory", "tcp/lo", "rc_mlx5/mlx5_0:1", each once, in UCX's order. Takes tens of
// microseconds: for humans, not for the data path.
std::vector<std::string> LanesOf(ucp_ep_h endpoint);

// The same from the text of ucp_ep_print_info.
std::vector<std::string> ParseLanes(const std::string& info);

// What endpoints of a context are made of, "posix/memory", "tcp/eth0", each once. Empty
// where UCX writes it otherwise than expected.
std::vector<std::string> ResourcesOf(ucp_context_h context);

// The same from the text of ucp_context_print_info.
std::vector<std::string> ParseResources(const std::string& info);

}  // namespace syncline
