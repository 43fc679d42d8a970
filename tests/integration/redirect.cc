// tampering_test.py loads this into workers (LD_PRELOAD). It redirects connections to one
// port of loopback to another one, on which the test's relay listens.
//
//   REDIRECT   ports, "FROM=TO,FROM=TO"
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <sstream>
#include <string>

namespace {

// Returns the port to connect to instead of `port`; 0: no other one.
in_port_t Instead(in_port_t port) {
  const char* const said = std::getenv("REDIRECT");
  std::istringstream pairs(said == nullptr ? "" : said);
  for (std::string pair; std::getline(pairs, pair, ',');) {
    const size_t split = pair.find('=');
    if (split == std::string::npos || std::stoi(pair) != ntohs(port)) continue;
    return htons(static_cast<in_port_t>(std::stoi(pair.substr(split + 1))));
  }
  return 0;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): in place of the C library's
extern "C" int connect(int fd, const sockaddr* address, socklen_t size) {
  using Function = int (*)(int, const sockaddr*, socklen_t);
  static const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "connect"));
  if (address->sa_family != AF_INET || size < sizeof(sockaddr_in)) {
    return original(fd, address, size);
  }
  sockaddr_in there = *reinterpret_cast<const sockaddr_in*>(address);
  if (const in_port_t port = Instead(there.sin_port); port != 0) there.sin_port = port;
  return original(fd, reinterpret_cast<const sockaddr*>(&there), sizeof(there));
}
