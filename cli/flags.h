// Flags that several subcommands share.
#pragma once

#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/rpc/tls.h"

namespace syncline {

// --tls-cert, --tls-key, --tls-ca, --identities, --insecure.
void AddTlsFlags(CLI::App& command, TlsOptions* options);

enum class OutputFormat { kTable, kJson };

// Adds -o, --output table|json, and --json as a short form.
void AddOutputFlag(CLI::App& command, OutputFormat* format);

// Parses "10s", "500ms", "1m30s", or a plain number of seconds. InvalidArgument
// (Failure::kUsage) names `flag`.
absl::StatusOr<absl::Duration> ParseDurationFlag(const std::string& flag,
                                                 const std::string& text);

}  // namespace syncline
