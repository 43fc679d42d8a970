// Logging: a Logger value that is handed down, never a global.
//
// On a terminal a line reads
//   12:03:59.127 info epoch begins role=server rank=1 epoch=4
//     reason="worker 2 silent for 5s"
// and with --log-format json it is one object
//   {"ts":"2024-05-01T12:03:59.127Z","level":"info","msg":"epoch begins","role":"server",
//    "rank":1,"epoch":4,"reason":"worker 2 silent for 5s"}
//
// Thread safety: any number of threads may log; lines never mix. A Logger is cheap to
// copy and shares its sink with its copies. A default-constructed Logger drops
// everything.
//
//   Logger log = Logger::Create({.format = LogFormat::kJson});
//   Logger server_log = log.With({{"role", "server"}, {"rank", 1}});
//   server_log.Info("epoch begins", {{"epoch", 4}, {"members", 3}});
#pragma once

#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace spdlog {
class logger;
}

namespace syncline {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// Parse "debug", "info", "warning", "error"; "text", "json". InvalidArgument lists the
// valid names.
absl::StatusOr<LogLevel> ParseLogLevel(std::string_view name);
absl::StatusOr<LogFormat> ParseLogFormat(std::string_view name);

// A named value of a log line. Numbers stay numbers in JSON.
struct LogField {
  template <typename T>
  LogField(absl::string_view key, const T& value)  // NOLINT: meant for {"key", value}
      : key(key), text(absl::StrCat(value)), is_number(std::is_arithmetic_v<T>) {}
  LogField(absl::string_view key, std::string_view value)
      : key(key), text(value), is_number(false) {}

  std::string key;
  std::string text;
  bool is_number;
};

struct LogOptions {
  LogFormat format = LogFormat::kText;
  LogLevel level = LogLevel::kInfo;
  // Destination of the lines; null: standard error. Must outlive the logger.
  std::ostream* stream = nullptr;
  // Used instead of a stream: receives each line, without time and level in front if the
  // format is kText. Called on any thread, one call at a time.
  std::function<void(LogLevel, const std::string&)> function = nullptr;
};

class Logger {
 public:
  using Fields = std::initializer_list<LogField>;

  Logger() = default;
  static Logger Create(const LogOptions& options);

  // Returns a logger that adds `fields` to each of its lines.
  Logger With(Fields fields) const;

  void Debug(absl::string_view message, Fields fields = {}) const;
  void Info(absl::string_view message, Fields fields = {}) const;
  void Warning(absl::string_view message, Fields fields = {}) const;
  void Error(absl::string_view message, Fields fields = {}) const;

  // Returns true if a line of this level is written. Avoids computing the fields of lines
  // that would be dropped.
  bool Enabled(LogLevel level) const;

 private:
  void Log(LogLevel level, absl::string_view message, Fields fields) const;

  std::shared_ptr<spdlog::logger> sink_;
  LogFormat format_ = LogFormat::kText;
  std::vector<LogField> bound_;
};

}  // namespace syncline
