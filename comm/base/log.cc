#include "comm/base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace syncline {
namespace {

constexpr std::string_view kLevelNames[] = {"debug", "info", "warning", "error"};

std::string_view NameOf(LogLevel level) {
  return kLevelNames[static_cast<size_t>(level)];
}

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

using Json = nlohmann::ordered_json;

// Replaces invalid UTF-8 instead of throwing: log lines contain names that came from
// outside.
std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json ValueOf(const LogField& field) {
  if (field.is_number) {
    // JSON has no infinity and NaN, so they stay text.
    Json number = Json::parse(field.text, nullptr, /*allow_exceptions=*/false);
    if (number.is_number()) return number;
  }
  return field.text;
}

bool NeedsQuotes(const std::string& text) {
  if (text.empty()) return true;
  for (const char c : text) {
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c == 0x7f) return true;
  }
  return false;
}

void AppendText(const LogField& field, std::string& line) {
  absl::StrAppend(&line, " ", field.key, "=",
                  NeedsQuotes(field.text) ? Dump(field.text) : field.text);
}

// A newline inside a message must not forge a second line.
std::string OneLine(absl::string_view message) {
  std::string line(message);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  }
  return line;
}

LogLevel LevelOf(spdlog::level::level_enum level) {
  for (const LogLevel one : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning}) {
    if (level <= SpdlogLevel(one)) return one;
  }
  return LogLevel::kError;
}

class FunctionSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FunctionSink(std::function<void(LogLevel, const std::string&)> function)
      : function_(std::move(function)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    function_(LevelOf(message.level),
              std::string(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}

  const std::function<void(LogLevel, const std::string&)> function_;
};

std::string TimestampUtc() {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<LogLevel> ParseLogLevel(std::string_view name) {
  for (LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (name == NameOf(level)) return level;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown log level '", std::string(name), "': give debug, info, warning or error"));
}

absl::StatusOr<LogFormat> ParseLogFormat(std::string_view name) {
  if (name == "text") return LogFormat::kText;
  if (name == "json") return LogFormat::kJson;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown log format '", std::string(name), "': give text or json"));
}

Logger Logger::Create(const LogOptions& options) {
  spdlog::sink_ptr sink;
  if (options.function) {
    sink = std::make_shared<FunctionSink>(options.function);
  } else if (options.stream != nullptr) {
    sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(*options.stream);
  } else {
    sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  }
  Logger logger;
  logger.format_ = options.format;
  logger.sink_ = std::make_shared<spdlog::logger>("syncline", std::move(sink));
  logger.sink_->set_level(SpdlogLevel(options.level));
  logger.sink_->flush_on(spdlog::level::warn);
  logger.sink_->set_pattern(options.format == LogFormat::kJson ? "%v"
                                                               : "%H:%M:%S.%e %^%l%$ %v");
  return logger;
}

Logger Logger::With(Fields fields) const {
  Logger with = *this;
  with.bound_.insert(with.bound_.end(), fields.begin(), fields.end());
  return with;
}

bool Logger::Enabled(LogLevel level) const {
  return sink_ != nullptr && sink_->should_log(SpdlogLevel(level));
}

void Logger::Debug(absl::string_view message, Fields fields) const {
  Log(LogLevel::kDebug, message, fields);
}
void Logger::Info(absl::string_view message, Fields fields) const {
  Log(LogLevel::kInfo, message, fields);
}
void Logger::Warning(absl::string_view message, Fields fields) const {
  Log(LogLevel::kWarning, message, fields);
}
void Logger::Error(absl::string_view message, Fields fields) const {
  Log(LogLevel::kError, message, fields);
}

void Logger::Log(LogLevel level, absl::string_view message, Fields fields) const {
  if (!Enabled(level)) return;
  std::string line;
  if (format_ == LogFormat::kJson) {
    Json object;
    object["ts"] = TimestampUtc();
    object["level"] = std::string(NameOf(level));
    object["msg"] = std::string(message);
    for (const LogField& field : bound_) object[field.key] = ValueOf(field);
    for (const LogField& field : fields) object[field.key] = ValueOf(field);
    line = Dump(object);
  } else {
    line = OneLine(message);
    for (const LogField& field : bound_) AppendText(field, line);
    for (const LogField& field : fields) AppendText(field, line);
  }
  // The line is an argument and not the format, because it may contain braces.
  sink_->log(SpdlogLevel(level), "{}", line);
}

}  // namespace syncline
