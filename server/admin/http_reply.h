// Replies of the admin port as bytes, and streams of server-sent events (WHATWG HTML,
// 9.2), which browsers read with EventSource.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace syncline {

struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body = {};
  std::vector<std::string> headers = {};  // "Name: value", added to those of every reply
};

// Returns the whole reply. For HEAD it has no body.
std::string SerializeReply(const HttpReply& reply, bool head_only);

// Returns the headers of a stream. The stream ends when the connection is closed.
std::string StreamHead();

// Returns an event of a stream: listeners of `name` get `data`.
std::string StreamEvent(std::string_view name, std::string_view data);

// A line that readers skip. It shows proxies that the stream is alive.
inline constexpr std::string_view kStreamComment = ":\n\n";

}  // namespace syncline
