#include "cli/lr_curve.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "comm/base/failure.h"

namespace syncline {
namespace {

constexpr double kSmoothing = 0.9;
constexpr double kDiverged = 4;  // multiple of the least loss
constexpr size_t kLeastPoints = 10;
constexpr int kRows = 16;
constexpr int kBarWidth = 48;

bool IsPicture(const std::string& path) {
  return path.ends_with(".svg") || path.ends_with(".png");
}

absl::Status CannotWrite(const std::string& path) {
  return absl::PermissionDeniedError(
      absl::StrCat("cannot write --out '", path, "': ", std::strerror(errno),
                   "; name a file in a directory that you may write to"));
}

absl::Status WriteLines(const LossCurve& curve, const std::string& path) {
  std::ofstream file(path);
  file << "learning_rate,loss\n";
  for (const LossAtRate& point : curve.points) {
    file << absl::StrFormat("%.9g,%.9g\n", point.learning_rate, point.loss);
  }
  file.close();
  return file.fail() ? CannotWrite(path) : absl::OkStatus();
}

// Quotes for gnuplot. In single quotes, only the quote itself is special.
std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "''"}}), "'");
}

std::string PlotScript(const LossCurve& curve, const std::optional<RateAdvice>& advice,
                       const std::string& path) {
  const bool is_svg = path.ends_with(".svg");
  std::string script = absl::StrCat(
      "set terminal ",
      is_svg ? "svg size 800,500 background 'white'" : "png size 800,500",
      "\nset output ", Quoted(path),
      "\nset logscale x\nset format x '%.0e'\nset grid\nset xlabel 'learning rate'\n"
      "set ylabel 'loss, smoothed'\nset key top left\n");
  if (advice) {
    absl::StrAppendFormat(&script,
                          "set arrow from %.9g, graph 0 to %.9g, graph 1 nohead dt 2\n",
                          advice->steepest, advice->steepest);
  }
  absl::StrAppend(&script, "plot '-' using 1:2 with lines lw 2 title 'loss'");
  if (advice) {
    absl::StrAppendFormat(&script,
                          ", NaN with lines dt 2 lc black title 'steepest: %.2g'",
                          advice->steepest);
  }
  absl::StrAppend(&script, "\n");
  for (const LossAtRate& point : curve.points) {
    absl::StrAppendFormat(&script, "%.9g %.9g\n", point.learning_rate, point.loss);
  }
  return script + "e\n";
}

absl::Status Draw(const std::string& script, const std::string& path) {
  std::FILE* gnuplot = popen("command -v gnuplot >/dev/null && exec gnuplot", "w");
  if (gnuplot == nullptr) return absl::UnavailableError("cannot start a shell");
  std::fputs(script.c_str(), gnuplot);
  if (pclose(gnuplot) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot draw ", path, " with gnuplot; install gnuplot-nox, or name a .csv file"));
}

}  // namespace

absl::Status CheckCurvePath(const std::string& path) {
  if (!IsPicture(path) && !path.ends_with(".csv")) {
    return WithFailure(absl::InvalidArgumentError(absl::StrCat(
                           "--out '", path, "' must end in .csv, .svg or .png")),
                       Failure::kUsage);
  }
  const char* look = "command -v gnuplot >/dev/null 2>&1";
  if (IsPicture(path) && std::system(look) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "drawing --out '", path, "' needs gnuplot; install gnuplot-nox, or name a .csv"));
  }
  // Appends nothing, so that the curve of an earlier sweep stays until there is a new
  // one.
  if (!std::ofstream(path, std::ios::app)) {
    const absl::Status failed = CannotWrite(path);
    return WithFailure(failed, Failure::kUsage);
  }
  return absl::OkStatus();
}

LossCurve SmoothCurve(const std::vector<LossAtRate>& raw) {
  LossCurve curve;
  double mean = 0;
  double weight = 0;
  double least = std::numeric_limits<double>::infinity();
  for (const LossAtRate& point : raw) {
    mean = kSmoothing * mean + (1 - kSmoothing) * point.loss;
    weight = kSmoothing * weight + (1 - kSmoothing);
    const double loss = mean / weight;
    if (!std::isfinite(loss) || (loss > kDiverged * least && least > 0)) {
      curve.diverged_at = point.learning_rate;
      break;
    }
    least = std::min(least, loss);
    curve.points.push_back({point.learning_rate, loss});
  }
  return curve;
}

std::optional<RateAdvice> AdviseRate(const LossCurve& curve) {
  const std::vector<LossAtRate>& points = curve.points;
  if (points.size() < kLeastPoints) return std::nullopt;
  const auto best = std::ranges::min_element(points, {}, &LossAtRate::loss);
  double steepest_slope = 0;
  RateAdvice advice = {.tenth_of_best = best->learning_rate / 10};
  for (size_t i = 1; i + 1 < points.size(); ++i) {
    const double slope =
        (points[i + 1].loss - points[i - 1].loss) /
        std::log(points[i + 1].learning_rate / points[i - 1].learning_rate);
    if (slope >= steepest_slope) continue;
    steepest_slope = slope;
    advice.steepest = points[i].learning_rate;
  }
  if (steepest_slope == 0) return std::nullopt;
  return advice;
}

std::string DrawCurve(const LossCurve& curve) {
  if (curve.points.empty()) return "no losses were reported\n";
  double least = curve.points.front().loss;
  double most = least;
  for (const LossAtRate& point : curve.points) {
    least = std::min(least, point.loss);
    most = std::max(most, point.loss);
  }
  const double range = most > least ? most - least : 1;
  std::string chart = absl::StrFormat("%-9s  %-10s\n", "LR", "LOSS");
  const size_t rows = std::min<size_t>(kRows, curve.points.size());
  for (size_t row = 0; row < rows; ++row) {
    const size_t begin = row * curve.points.size() / rows;
    const size_t end = (row + 1) * curve.points.size() / rows;
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += curve.points[i].loss;
    const double loss = sum / static_cast<double>(end - begin);
    const int bar = static_cast<int>(std::lround((loss - least) / range * kBarWidth));
    absl::StrAppendFormat(&chart, "%-9.2g  %-10.4g  %s\n",
                          curve.points[(begin + end) / 2].learning_rate, loss,
                          std::string(static_cast<size_t>(bar) + 1, '#'));
  }
  return chart;
}

absl::Status WriteCurve(const LossCurve& curve, const std::optional<RateAdvice>& advice,
                        const std::string& path) {
  if (!IsPicture(path)) return WriteLines(curve, path);
  return Draw(PlotScript(curve, advice, path), path);
}

}  // namespace syncline
