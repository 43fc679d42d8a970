// OpenSSL keeps a queue of errors for each thread and frees it when the thread ends. At the
// program's end its handler of atexit gives that up, a little before LeakSanitizer looks: a
// thread of gRPC that ends in between leaves its queue behind, which is reported as a leak
// of 904 bytes that comes and goes. Without the handler there is no such moment, and
// leaks of OpenSSL's objects are still seen.
#include <openssl/crypto.h>

// Weak: not every program has OpenSSL.
extern "C" int OPENSSL_init_crypto(uint64_t opts, const OPENSSL_INIT_SETTINGS* settings)
    __attribute__((weak));

namespace {

// The first call in a program decides, so this one comes before main.
__attribute__((constructor)) void KeepOpenSslUntilTheEnd() {
  if (OPENSSL_init_crypto != nullptr) {
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  }
}

}  // namespace
