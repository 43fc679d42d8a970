#include "server/admin/http_reply.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace syncline {
namespace {

const char* StatusText(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 303:
      return "See Other";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

// Pages show names that members chose. Therefore only our own files may run.
constexpr char kForEverybody[] =
    "\r\nContent-Security-Policy: default-src 'self'; img-src data:; frame-ancestors "
    "'none'; form-action 'self'; base-uri 'none'"
    "\r\nReferrer-Policy: no-referrer"
    "\r\nX-Content-Type-Options: nosniff"
    "\r\nConnection: close";

}  // namespace

std::string SerializeReply(const HttpReply& reply, bool head_only) {
  std::string more;
  for (const std::string& header : reply.headers) {
    absl::StrAppend(&more, "\r\n", header);
  }
  return absl::StrCat("HTTP/1.1 ", reply.status, " ", StatusText(reply.status),
                      reply.status == 405 ? "\r\nAllow: GET, HEAD" : "", more,
                      "\r\nContent-Type: ", reply.type,
                      "\r\nContent-Length: ", reply.body.size(),
                      "\r\nCache-Control: no-store", kForEverybody, "\r\n\r\n",
                      head_only ? "" : reply.body);
}

std::string StreamHead() {
  // Keeps proxies from buffering or changing the stream.
  return absl::StrCat(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream"
      "\r\nCache-Control: no-store, no-transform\r\nX-Accel-Buffering: no",
      kForEverybody, "\r\n\r\n");
}

std::string StreamEvent(std::string_view name, std::string_view data) {
  std::string event =
      absl::StrCat("event: ", absl::string_view(name.data(), name.size()));
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(data.data(), data.size()), '\n')) {
    absl::StrAppend(&event, "\ndata: ", line);
  }
  return event + "\n\n";
}

}  // namespace syncline
