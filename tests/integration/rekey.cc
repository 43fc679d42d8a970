// adversary_test.py loads this into syncline and its workers (LD_PRELOAD). TLS
// connections of the data plane, which are the only callers of SSL_write_ex, get new keys
// every two seconds, instead of after 64 GiB or an hour.
//
//   REKEY_LOG   a file that gets a line "PID" for each new key
//   REKEY_MS    milliseconds between two keys; default: 2,100. Peers accept one key per
//               second, and the product sends none before two seconds have passed.
#include <dlfcn.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace {

using Time = std::chrono::steady_clock::time_point;

std::chrono::milliseconds Apart() {
  const char* const said = std::getenv("REKEY_MS");
  return std::chrono::milliseconds(said == nullptr ? 2100 : std::atoi(said));
}

// Whether a new key is due for this connection. The first one is due that long after its
// first message, because peers also count the handshake.
bool IsDue(const SSL* ssl) {
  static std::mutex mutex;
  static std::map<const SSL*, Time> latest;
  const Time now = std::chrono::steady_clock::now();
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [known, is_new] = latest.try_emplace(ssl, now);
  if (is_new || now - known->second < Apart()) return false;
  known->second = now;
  return true;
}

void Note() {
  const char* const path = std::getenv("REKEY_LOG");
  const int file = open(path == nullptr ? "/dev/null" : path,
                        O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  char line[32];
  const int size = std::snprintf(line, sizeof(line), "%d\n", getpid());
  if (write(file, line, static_cast<size_t>(size)) != size) std::abort();
  close(file);
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): in place of OpenSSL's
extern "C" int SSL_write_ex(SSL* ssl, const void* data, size_t size, size_t* written) {
  using Function = int (*)(SSL*, const void*, size_t, size_t*);
  static const auto original =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "SSL_write_ex"));
  if (IsDue(ssl)) {
    if (SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) Note();
  }
  return original(ssl, data, size, written);
}
