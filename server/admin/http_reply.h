// A reply of the admin port, as bytes; and streams of server-sent events (WHATWG HTML,
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
  std::vector<std::string> headers = {};  // "Name: value", besides those of every reply
};

// The whole reply, or for HEAD all but its body.
std::string SerializeReply(const HttpReply& reply, bool head_only);

// What goes before the events of a stream. It ends when the connection does.
std::string StreamHead();

// An event of a stream: what `name` listens for gets `data`.
std::string StreamEvent(std::string_view name, std::string_view data);

// What a reader skips, and what shows a proxy that the stream lives.
inline constexpr std::string_view kStreamComment = ":\n\n";

}  // namespace syncline
