// Which transports UCX chose for an endpoint. UCX 1.13 has no call for it, only a text
// for humans.
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

}  // namespace syncline
