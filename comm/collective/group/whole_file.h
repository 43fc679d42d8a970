// Files that other processes read while one writes them.
//
// Thread safety: a path must have one writer at a time.
#pragma once

#include <string>
#include <system_error>

namespace syncline::collective {

// Writes the contents to `fresh`, a path in the same folder, and renames it to `path`: others
// read the old file or the new one, never a part. If that fails, `fresh` is removed.
std::error_code ReplaceFile(const std::string& path, const std::string& fresh,
                            const std::string& contents);

}  // namespace syncline::collective
