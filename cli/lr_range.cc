#include "cli/lr_range.h"

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "cli/lr_curve.h"
#include "cli/run.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/status_json.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

constexpr absl::Duration kStatusTimeout = absl::Seconds(5);

struct LrRangeOptions {
  RunOptions run;
  double first = 1e-6;
  double last = 1;
  int steps = 100;
  std::string out;
};

absl::Status CheckRange(const LrRangeOptions& options) {
  if (options.first > 0 && options.last > options.first && options.last <= 1e6 &&
      options.steps >= 10 && options.steps <= 10000) {
    return absl::OkStatus();
  }
  return WithFailure(absl::InvalidArgumentError(absl::StrFormat(
                         "--first %g, --last %g and --steps %d: required are 0 < first < "
                         "last <= 1e6 and 10 to 10000 steps",
                         options.first, options.last, options.steps)),
                     Failure::kUsage);
}

// Fetches the losses of the job while its coordinator still runs.
absl::StatusOr<std::vector<LossAtRate>> FetchCurve(const std::string& coordinator,
                                                   const RunOptions& run) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string text,
                            FetchStatusJson(coordinator, run.tls, kStatusTimeout));
  const nlohmann::json status = nlohmann::json::parse(text);
  std::vector<LossAtRate> curve;
  for (const nlohmann::json& job : status["jobs"]) {
    if (job["name"] != run.job) continue;
    for (const nlohmann::json& point : job["loss_curve"]) {
      curve.push_back({point["learning_rate"], point["loss"]});
    }
  }
  return curve;
}

absl::Status Report(const LrRangeOptions& options, const std::vector<LossAtRate>& raw) {
  if (raw.empty()) {
    return absl::FailedPreconditionError(
        "no worker reported a loss; call Session::ReportLoss at each step");
  }
  std::vector<LossAtRate> swept = raw;
  if (swept.size() > static_cast<size_t>(options.steps)) {
    swept.resize(static_cast<size_t>(options.steps));
  }
  const LossCurve curve = SmoothCurve(swept);
  const auto advice = AdviseRate(curve);
  std::cout << "\n" << DrawCurve(curve);
  if (curve.diverged_at) {
    std::cout << absl::StrFormat("diverges from %.2g on\n", *curve.diverged_at);
  }
  if (advice) {
    std::cout << absl::StrFormat(
        "the loss falls fastest at %.2g; a tenth of the rate with the least loss is "
        "%.2g\n",
        advice->steepest, advice->tenth_of_best);
  } else {
    std::cout << "the loss does not fall: try other --first, --last or more --steps\n";
  }
  if (options.out.empty()) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(WriteCurve(curve, advice, options.out));
  std::cout << "written to " << options.out << "\n";
  return absl::OkStatus();
}

absl::StatusOr<int> RunLrRange(LrRangeOptions options) {
  SYNCLINE_RETURN_IF_ERROR(CheckRange(options));
  if (!options.out.empty()) SYNCLINE_RETURN_IF_ERROR(CheckCurvePath(options.out));
  options.run.env.emplace_back(
      "SYNCLINE_LR_RANGE",
      absl::StrFormat("%.9g:%.9g:%d", options.first, options.last, options.steps));
  absl::StatusOr<std::vector<LossAtRate>> curve =
      absl::UnavailableError("the job did not begin");
  SYNCLINE_ASSIGN_OR_RETURN(const int exit_code,
                            RunProgram(options.run, [&](const std::string& coordinator) {
                              curve = FetchCurve(coordinator, options.run);
                            }));
  if (exit_code != kExitDone) return exit_code;
  SYNCLINE_RETURN_IF_ERROR(curve.status());
  SYNCLINE_RETURN_IF_ERROR(Report(options, *curve));
  return kExitDone;
}

}  // namespace

void AddLrRange(CLI::App& app, Command* selected) {
  auto options = std::make_shared<LrRangeOptions>();
  CLI::App* command = app.add_subcommand(
      "lr-range",
      "Sweep through learning rates while a program trains, and show the losses");
  AddRunFlags(*command, options->run);
  command->add_option("--first", options->first, "The smallest learning rate")
      ->capture_default_str();
  command->add_option("--last", options->last, "The largest one, reached after --steps")
      ->capture_default_str();
  command->add_option("--steps", options->steps, "Updates from the first to the last")
      ->capture_default_str();
  command->add_option("--out", options->out,
                      "Also write the curve: .csv, or .svg and .png with gnuplot");
  command->callback([=] { *selected = [options] { return RunLrRange(*options); }; });
}

}  // namespace syncline
