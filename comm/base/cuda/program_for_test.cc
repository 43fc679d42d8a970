// A program that opens a library, as python does. It prints where library_for_test.cc,
// named by the argument, looked for the module.
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::printf("%s", dlerror());
    return 1;
  }
  auto* const probed_path =
      reinterpret_cast<const char* (*)()>(dlsym(library, "SynclineTestProbedPath"));
  std::printf("%s", probed_path == nullptr ? dlerror() : probed_path());
  return 0;
}
