// How a subcommand of `syncline` is written. Each has one file, one Add function, and one
// line in main.cc:
//
//   void AddServe(CLI::App& app, Command* selected) {
//     auto options = std::make_shared<ServeOptions>();
//     CLI::App* serve = app.add_subcommand("serve", "Run the long-running services");
//     serve->add_option("--role", options->role, "all, coordinator or server");
//     serve->callback([=] { *selected = [options] { return Serve(*options); }; });
//   }
//
// The callback only stores what to run: main.cc first fills in the flags that the command
// line did not give, from SYNCLINE_<FLAG> and from --config (cli/settings.h), then calls
// *selected outside of CLI11. For that to work a subcommand
//   - keeps its options in a shared_ptr and reads them only inside the stored function;
//   - checks required and allowed values itself (absl::InvalidArgumentError with
//     Failure::kUsage becomes exit code 2), and never uses CLI11's required();
//   - prints no errors: it returns them, and main.cc prints the one line and picks the
//     exit code (comm/base/exit_codes.h).
#pragma once

#include <functional>

#include "absl/status/statusor.h"

namespace syncline {

// The exit code of the process, or the error that main.cc prints and maps to one.
using Command = std::function<absl::StatusOr<int>()>;

}  // namespace syncline
