// Loaded into workers by tampering_test.py (LD_PRELOAD): what they dial at one port of
// loopback goes to another, where the test's relay listens.
//
// REDIRECT     "FROM=TO,FROM=TO", ports
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <sstream>
#include <string>

namespace {

// Where to dial instead of `port`; 0: there.
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
