// The line that shows how training goes. On a terminal it is one line, redrawn; elsewhere
// one plain line every few seconds.
//
//   42% |######----------| 345/823 loss 0.241 acc 91.3% 9120 samples/s
//     push 541 pull 540 MiB ETA 0:21
#pragma once

#include <cstdint>
#include <string>

namespace syncline::fashion_mnist {

struct Progress {
  int64_t step = 0;
  int64_t total_steps = 1;
  double seconds = 0;      // since training began
  int64_t first_step = 0;  // where this worker took part first
  double loss = 0;
  double accuracy = 0;  // of the training batches, 0 to 1
  double samples_per_second = 0;
  int64_t bytes_pushed = 0;
  int64_t bytes_pulled = 0;
};

// One line without line end and without a bar.
std::string FormatProgress(const Progress& progress);

// The same with a bar as long as the terminal's width allows, cut where even the line
// alone is too long: a line that wraps cannot be redrawn.
std::string FitProgress(const Progress& progress, int columns);

// Prints to standard output. Not thread-safe.
class ProgressLine {
 public:
  ProgressLine();

  // Prints, unless it just did. Call it at every step.
  void Update(const Progress& progress);

  // Prints the last state and ends the line.
  void Finish(const Progress& progress);

 private:
  void Print(const Progress& progress, const char* line_end);

  const bool is_terminal_;
  double next_print_seconds_ = 0;
};

}  // namespace syncline::fashion_mnist
