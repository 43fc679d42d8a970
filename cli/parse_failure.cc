#include "cli/parse_failure.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/settings.h"
#include "comm/base/failure.h"
#include "comm/base/nearest.h"
#include "comm/base/printable.h"

namespace syncline {
namespace {

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

std::vector<std::string> NamesOfCommands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    names.push_back(command->get_name());
  }
  return names;
}

// Returns the full name of the command, such as "syncline bench codec".
std::string NameOf(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name()
                           : absl::StrCat(NameOf(*parent), " ", command.get_name());
}

CLI::App& Innermost(CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  return parsed.empty() ? app : Innermost(*parsed.front());
}

absl::Status UnknownCommand(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> names = NamesOfCommands(app);
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  const std::string shown = Printable(word);
  const std::string nearest(NearestName(shown, candidates));
  return Usage(absl::StrCat("unknown command '", shown, "'",
                            nearest.empty()
                                ? absl::StrCat("; see ", NameOf(app), " --help")
                                : absl::StrCat("; did you mean ", nearest, "?")));
}

// Returns the flag that a message of CLI11 is about. Messages begin with the flag's name,
// some after other words ("Could not convert: --workers = many").
CLI::Option* FlagOf(CLI::App& command, const std::string& message) {
  for (size_t at = message.find('-'); at != std::string::npos;
       at = message.find('-', at + 1)) {
    if (at > 0 && message[at - 1] != ' ') continue;
    const std::string word = message.substr(at, message.find_first_of(" :=", at) - at);
    if (CLI::Option* flag = command.get_option_no_throw(word)) return flag;
  }
  return nullptr;
}

struct Given {
  std::string flag;                       // as it was written
  std::optional<std::string> value = {};  // the last one, if the flag was repeated
  int times = 0;
};

Given GivenFor(const CLI::Option& flag, const std::vector<std::string>& arguments) {
  Given given = {.flag = flag.get_name()};
  for (size_t i = 0; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    const std::string name = arguments[i].substr(0, equals);
    if (!name.starts_with('-') || !flag.check_name(name)) continue;
    given.flag = name;
    ++given.times;
    if (equals != std::string::npos) {
      given.value = arguments[i].substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      given.value = arguments[i + 1];
    }
  }
  return given;
}

std::string WhatIsWrong(const CLI::Option& flag, const Given& given,
                        const std::string& kind) {
  if (kind == "ArgumentMismatch" && given.times > 1) {
    return absl::StrCat(given.flag, " is given ", given.times, " times; keep one");
  }
  if (kind == "ArgumentMismatch" || !given.value.has_value()) {
    return absl::StrCat(given.flag, " needs a value: ", flag.get_description());
  }
  const std::string value = absl::StrCat(given.flag, " '", Printable(*given.value), "'");
  const std::string type = flag.get_type_name();
  if (type == "INT" || type == "UINT") return value + " is not a whole number";
  if (type == "FLOAT") return value + " is not a number";
  return absl::StrCat(value, " is not a valid value: ", flag.get_description());
}

}  // namespace

absl::Status ParseFailure(CLI::App& app, const CLI::ParseError& error,
                          const std::vector<std::string>& arguments) {
  const std::vector<std::string> unknown = app.remaining(true);
  CLI::App& command = Innermost(app);
  const std::string see = absl::StrCat("; see ", NameOf(command), " --help");
  const bool wants_command = !command.get_subcommands(nullptr).empty();
  if (!unknown.empty() && unknown.front().starts_with('-')) {
    const std::string name = unknown.front().substr(0, unknown.front().find('='));
    const std::string nearest = NearestFlag(name, FlagsOf(command));
    return Usage(absl::StrCat(
        "unknown flag ", Printable(name),
        nearest.empty() ? see : absl::StrCat("; did you mean --", nearest, "?")));
  }
  if (!unknown.empty() && wants_command) {
    return UnknownCommand(command, unknown.front());
  }
  if (!unknown.empty()) {
    return Usage(
        absl::StrCat("'", Printable(unknown.front()), "' is not expected here", see));
  }
  if (wants_command && error.get_name() == "RequiredError") {
    return Usage(absl::StrCat("no command is given; choose one of ",
                              absl::StrJoin(NamesOfCommands(command), ", "), see));
  }
  const CLI::Option* flag = FlagOf(command, error.what());
  if (flag == nullptr) return Usage(absl::StrCat(Printable(error.what()), see));
  return Usage(absl::StrCat(
      WhatIsWrong(*flag, GivenFor(*flag, arguments), error.get_name()), see));
}

}  // namespace syncline
