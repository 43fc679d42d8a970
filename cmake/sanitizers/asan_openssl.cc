// OpenSSL has an error queue for each thread, and frees it when the thread ends. At the
// program's end, OpenSSL's atexit handler stops that, a little before LeakSanitizer runs.
// A gRPC thread that ends in between leaks its queue, which is sometimes reported as a
// leak of 904 bytes. Without the handler this cannot happen, and leaks of OpenSSL's
// objects are still found.
#include <openssl/crypto.h>

// The symbol is weak, because not every program links OpenSSL.
extern "C" int OPENSSL_init_crypto(uint64_t opts, const OPENSSL_INIT_SETTINGS* settings)
    __attribute__((weak));

namespace {

// The first call in a program counts, so this one runs before main.
__attribute__((constructor)) void KeepOpenSslUntilTheEnd() {
  if (OPENSSL_init_crypto != nullptr) {
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  }
}

}  // namespace
