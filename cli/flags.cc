#include "cli/flags.h"

#include <cmath>
#include <map>

#include "CLI/Validators.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"

namespace syncline {

void AddTlsFlags(CLI::App& command, TlsOptions* options) {
  command.add_option("--tls-cert", options->cert_file,
                     "Certificate of this process (PEM)");
  command.add_option("--tls-key", options->key_file, "Private key of this process (PEM)");
  command.add_option("--tls-ca", options->ca_file,
                     "CA that signs the peers' certificates (PEM)");
  command.add_option("--identities", options->identities_file,
                     "File with the roles of certificates that name none: lines such as "
                     "'URI:spiffe://d/ns/ml/sa/x worker bert'");
  command.add_flag("--insecure", options->insecure,
                   "Allow plain text: of `serve`, also beyond loopback, and on loopback "
                   "for every user of the host");
}

void AddOutputFlag(CLI::App& command, OutputFormat* format) {
  const std::map<std::string, OutputFormat> names = {{"table", OutputFormat::kTable},
                                                     {"json", OutputFormat::kJson}};
  command.add_option("-o,--output", *format, "table or json")
      ->transform(CLI::CheckedTransformer(names).description(""));
  const auto choose_json = [format] { *format = OutputFormat::kJson; };
  command.add_flag_callback("--json", choose_json, "Short for --output json")
      ->excludes("--output");
}

absl::StatusOr<absl::Duration> ParseDurationFlag(const std::string& flag,
                                                 const std::string& text) {
  absl::Duration duration;
  double seconds = 0;
  const bool is_number = absl::SimpleAtod(text, &seconds) && std::isfinite(seconds);
  if (is_number) duration = absl::Seconds(seconds);
  // absl parses "inf" as a duration, but the flag must be finite.
  if (!is_number &&
      (!absl::ParseDuration(text, &duration) || duration == absl::InfiniteDuration() ||
       duration == -absl::InfiniteDuration())) {
    return WithFailure(
        absl::InvalidArgumentError(absl::StrCat(
            flag, " '", text, "' is not a duration; write 10s, 500ms or 1m30s")),
        Failure::kUsage);
  }
  return duration;
}

}  // namespace syncline
