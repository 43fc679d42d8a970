#include "worker/examples/fashion_mnist/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncline::fashion_mnist {
namespace {

constexpr int kMinBarColumns = 4;
constexpr int kMaxBarColumns = 32;
constexpr int kBarFrame = 3;  // two ends and a space
constexpr int kUsualColumns = 80;
constexpr double kTerminalPeriodSeconds = 0.1;
constexpr double kPlainPeriodSeconds = 5.0;
constexpr double kMiB = 1024.0 * 1024.0;

std::string Bar(double fraction, int columns) {
  const int filled = std::clamp(static_cast<int>(fraction * columns), 0, columns);
  return absl::StrCat("|", std::string(filled, '#'), std::string(columns - filled, '-'),
                      "|");
}

std::string Eta(const Progress& progress) {
  const int64_t done = progress.step - progress.first_step;
  if (done <= 0) return "--:--";
  const int64_t left = progress.total_steps - progress.step;
  const auto seconds = std::llround(progress.seconds / done * left);
  return absl::StrFormat("%d:%02d", seconds / 60, seconds % 60);
}

double Fraction(const Progress& progress) {
  return static_cast<double>(progress.step) / static_cast<double>(progress.total_steps);
}

std::string Percent(const Progress& progress) {
  return absl::StrFormat("%3.0f%%", Fraction(progress) * 100);
}

std::string Figures(const Progress& progress) {
  return absl::StrFormat(
      "%d/%d loss %.3f acc %.1f%% %.0f samples/s push %.0f pull %.0f MiB ETA %s",
      progress.step, progress.total_steps, progress.loss, progress.accuracy * 100,
      progress.samples_per_second, progress.bytes_pushed / kMiB,
      progress.bytes_pulled / kMiB, Eta(progress));
}

int TerminalColumns() {
  winsize size = {};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
                                                                         : kUsualColumns;
}

}  // namespace

std::string FormatProgress(const Progress& progress) {
  return absl::StrCat(Percent(progress), " ", Figures(progress));
}

std::string FitProgress(const Progress& progress, int columns) {
  std::string line = FormatProgress(progress);
  const int bar_columns =
      std::min(columns - static_cast<int>(line.size()) - kBarFrame, kMaxBarColumns);
  if (bar_columns >= kMinBarColumns) {
    line = absl::StrCat(Percent(progress), " ", Bar(Fraction(progress), bar_columns), " ",
                        Figures(progress));
  }
  return line.substr(0, std::max(columns, 0));
}

ProgressLine::ProgressLine() : is_terminal_(isatty(STDOUT_FILENO) == 1) {}

void ProgressLine::Update(const Progress& progress) {
  if (progress.seconds < next_print_seconds_) return;
  next_print_seconds_ =
      progress.seconds + (is_terminal_ ? kTerminalPeriodSeconds : kPlainPeriodSeconds);
  Print(progress, "");
}

void ProgressLine::Finish(const Progress& progress) { Print(progress, "\n"); }

void ProgressLine::Print(const Progress& progress, const char* line_end) {
  if (is_terminal_) {
    // Back to the first column, and erase what an earlier, longer line left.
    std::printf("\r%s\x1b[K%s", FitProgress(progress, TerminalColumns()).c_str(),
                line_end);
  } else {
    std::printf("%s\n", FormatProgress(progress).c_str());
  }
  std::fflush(stdout);
}

}  // namespace syncline::fashion_mnist
