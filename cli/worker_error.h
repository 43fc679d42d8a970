// What a worker's program says of its own end: the file that TORCHELASTIC_ERROR_FILE
// names, which torch's `record` writes, and whatever does as it does.
#pragma once

#include <string>

namespace syncline {

// Its message, in one line, "ValueError: no data"; empty when there is none, or when the
// file is not what torch writes.
std::string ReadWorkerError(const std::string& path);

// To the file that whoever started this launcher has named, if anybody has: as torchrun
// does, so that launchers may be nested.
void PassOnWorkerError(const std::string& path);

}  // namespace syncline
