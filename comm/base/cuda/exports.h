// Examines a file before it is opened as a shared library, without running any of its
// code. dlopen runs initialisers, and those of a wrong library may end the process (a
// second copy of protobuf does). A truncated file may fault when it is mapped.
//
//   const std::string why_not = WhyNotExported("/opt/module.so", "SynclineCudaDescribe");
//   if (why_not.empty()) dlopen(...);
//
// Thread-safe.
#pragma once

#include <string>

namespace syncline {

// Returns "" if the file is a shared library for this machine that exports the symbol and
// is as long as its headers say. Otherwise returns what is wrong, beginning with the
// path. It does not detect damage inside the library.
std::string WhyNotExported(const std::string& path, const std::string& symbol);

}  // namespace syncline
