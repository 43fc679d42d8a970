#include "cli/doctor.h"

#include <algorithm>
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/flags.h"
#include "cli/output_width.h"
#include "comm/base/exit_codes.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

Check::Result Worst(const std::vector<Check>& checks) {
  Check::Result worst = Check::kOk;
  for (const Check& check : checks) worst = std::max(worst, check.result);
  return worst;
}

}  // namespace

std::string ChecksAsTable(const std::vector<Check>& checks, size_t columns) {
  constexpr size_t kWordsAt = 21;
  std::string table;
  for (const Check& check : checks) {
    const std::string line = absl::StrFormat("%-4s  %-13s  %s", ResultName(check.result),
                                             check.name, check.finding);
    absl::StrAppend(&table, BrokenLine(line, columns, kWordsAt), "\n");
    if (check.fix.empty()) continue;
    const std::string fix = absl::StrCat(std::string(kWordsAt, ' '), "fix: ", check.fix);
    absl::StrAppend(&table, BrokenLine(fix, columns, kWordsAt), "\n");
  }
  return table;
}

std::string ChecksAsJson(const std::vector<Check>& checks) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    list.push_back({{"name", check.name},
                    {"result", ResultName(check.result)},
                    {"finding", check.finding},
                    {"fix", check.fix}});
  }
  const nlohmann::ordered_json json = {{"result", ResultName(Worst(checks))},
                                       {"checks", list}};
  return json.dump(2) + "\n";
}

void AddDoctor(CLI::App& app, Command* selected) {
  auto format = std::make_shared<OutputFormat>(OutputFormat::kTable);
  CLI::App* doctor = app.add_subcommand(
      "doctor", "Check this machine, and show how to fix what is wrong");
  AddOutputFlag(*doctor, format.get());
  doctor->callback([=] {
    *selected = [format]() -> absl::StatusOr<int> {
      const std::vector<Check> checks = RunChecks();
      std::cout << (*format == OutputFormat::kJson
                        ? ChecksAsJson(checks)
                        : ChecksAsTable(checks, OutputColumns()))
                << std::flush;
      return Worst(checks) == Check::kFail ? kExitFatal : kExitDone;
    };
  });
}

}  // namespace syncline
