#include "worker/examples/fashion_mnist/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncline::fashion_mnist {
namespace {

constexpr int kBarColumns = 16;
constexpr double kTerminalPeriodSeconds = 0.1;
constexpr double kPlainPeriodSeconds = 5.0;
constexpr double kMiB = 1024.0 * 1024.0;

std::string Bar(double fraction, int columns) {
  const int filled = std::clamp(static_cast<int>(fraction * columns), 0, columns);
  return absl::StrCat("|", std::string(filled, '#'), std::string(columns - filled, '-'),
                      "| ");
}

std::string Eta(const Progress& progress) {
  const int64_t done = progress.step - progress.first_step;
  if (done <= 0) return "--:--";
  const int64_t left = progress.total_steps - progress.step;
  const auto seconds = static_cast<int64_t>(progress.seconds / done * left + 0.5);
  return absl::StrFormat("%d:%02d", seconds / 60, seconds % 60);
}

}  // namespace

std::string FormatProgress(const Progress& progress, int bar_columns) {
  const double fraction = static_cast<double>(progress.step) / progress.total_steps;
  return absl::StrFormat(
      "%3.0f%% %s%d/%d  loss %.3f  acc %.1f%%  %.0f samples/s  push %.1f MiB  pull %.1f "
      "MiB  "
      "ETA %s",
      fraction * 100, bar_columns > 0 ? Bar(fraction, bar_columns) : "", progress.step,
      progress.total_steps, progress.loss, progress.accuracy * 100,
      progress.samples_per_second, progress.bytes_pushed / kMiB,
      progress.bytes_pulled / kMiB, Eta(progress));
}

ProgressLine::ProgressLine() : is_terminal_(isatty(STDOUT_FILENO) == 1) {}

void ProgressLine::Update(const Progress& progress) {
  if (progress.seconds < next_print_seconds_) return;
  next_print_seconds_ =
      progress.seconds + (is_terminal_ ? kTerminalPeriodSeconds : kPlainPeriodSeconds);
  Print(progress, is_terminal_ ? "" : "\n");
}

void ProgressLine::Finish(const Progress& progress) { Print(progress, "\n"); }

void ProgressLine::Print(const Progress& progress, const char* line_end) {
  // "\r" and "erase to the end of the line" redraw in place.
  const std::string line = FormatProgress(progress, is_terminal_ ? kBarColumns : 0);
  std::printf("%s%s%s%s", is_terminal_ ? "\r" : "", line.c_str(),
              is_terminal_ ? "\x1b[K" : "", line_end);
  std::fflush(stdout);
}

}  // namespace syncline::fashion_mnist
