// Looks into a file that is to be opened as a shared library, without running any of it:
// dlopen runs initialisers, and those of a wrong library may end the process (a second
// copy of protobuf does), while a file that was cut short may fault as it is mapped.
//
//   const std::string why_not = WhyNotExported("/opt/module.so", "SynclineCudaDescribe");
//   if (why_not.empty()) dlopen(...);
//
// Thread-safe.
#pragma once

#include <string>

namespace syncline {

// Empty where the file is a shared library for this machine, whole as far as its headers
// say, that exports the symbol; otherwise what it is instead, beginning with the path.
// It sees what a linker leaves in the file: a library damaged inside passes.
std::string WhyNotExported(const std::string& path, const std::string& symbol);

}  // namespace syncline
