// Says which NCCL this machine has, without linking it: opens libnccl.so.2 at run time
// and asks for its version. A machine without NCCL is a normal case, so nothing here
// fails; the message says what is missing.
//
//   const NcclProbe probe = ProbeNccl();  // {true, 22703, "NCCL 2.27.3"}
//
// Thread-safe. The library stays open for the life of the process.
#pragma once

#include <string>

namespace syncline {

struct NcclProbe {
  bool loaded = false;
  int version = 0;      // As NCCL counts: 22703 is 2.27.3.
  std::string message;  // One line for people; never empty.
};

NcclProbe ProbeNccl();

// Opens `library`: a path, or a name for the dynamic linker to find.
NcclProbe ProbeNcclLibrary(const std::string& library);

}  // namespace syncline
