#include "server/service/event_log.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;

std::string KeyOf(uint32_t job) { return absl::StrCat(EventLog::kRecords, job); }

Json ToJson(const LoggedEvent& logged) {
  Json json = {{"number", logged.number},
               {"time_ms", absl::ToUnixMillis(logged.time)},
               {"kind", std::string(EventKindName(logged.event.kind))},
               {"step", logged.event.step},
               {"what", logged.event.what}};
  if (logged.event.took) json["seconds"] = absl::ToDoubleSeconds(*logged.event.took);
  return json;
}

// Cuts the text between two UTF-8 characters.
void CutTo(size_t most, std::string& text) {
  if (text.size() <= most) return;
  const auto continues = [&text](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
  };
  while (most > 0 && continues(most)) --most;
  text.resize(most);
}

// Throws the errors of Json. Returns nothing if the kind is of a later version.
std::optional<LoggedEvent> EventFrom(const Json& json) {
  const auto kind = EventKindOf(json.at("kind").get<std::string>());
  if (!kind) return std::nullopt;
  LoggedEvent logged = {
      .number = json.at("number"),
      .time = absl::FromUnixMillis(json.at("time_ms")),
      .event = {.step = json.at("step"), .kind = *kind, .what = json.at("what")}};
  if (json.contains("seconds")) {
    logged.event.took = absl::Seconds(json.at("seconds").get<double>());
  }
  return logged;
}

}  // namespace

std::vector<LoggedEvent> EventLog::Log::Shown(size_t most) const {
  if (events.empty()) return {};
  // Events added since the last Show have consecutive numbers.
  const size_t hidden = std::min<size_t>(events.size(), events.back().number - shown);
  const size_t seen = events.size() - hidden;
  const auto begin =
      events.begin() + static_cast<std::ptrdiff_t>(seen - std::min(seen, most));
  return {begin, events.begin() + static_cast<std::ptrdiff_t>(seen)};
}

absl::Status EventLog::Restore(const std::string& key, const std::string& value) {
  uint32_t job = 0;
  const std::string prefix = kRecords;
  if (!absl::SimpleAtoi(key.substr(prefix.size()), &job)) {
    return absl::DataLossError(absl::StrCat("'", key, "' does not belong to a job"));
  }
  const Json json = Json::parse(value, nullptr, /*allow_exceptions=*/false);
  Log log;
  try {
    if (!json.is_object() || json.value("version", 0) != kVersion) {
      return absl::DataLossError("it is damaged, or of another version");
    }
    const std::string name = json.at("name");
    for (const Json& one : json.at("events")) {
      std::optional<LoggedEvent> logged = EventFrom(one);
      if (!logged) continue;
      logged->event.job = job;
      logged->event.job_name = name;
      log.shown = std::max(log.shown, logged->number);
      log.events.push_back(*std::move(logged));
    }
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrCat("a field is invalid: ", error.what()));
  }
  if (log.events.empty()) return absl::OkStatus();
  Trim(log);
  absl::MutexLock lock(&mutex_);
  logs_[job] = std::move(log);
  return absl::OkStatus();
}

void EventLog::Trim(Log& log) const {
  while (log.events.size() > limits_.events) log.events.pop_front();
}

void EventLog::Add(CoordinatorEvent event) { Add(std::move(event), absl::Now()); }

void EventLog::Add(CoordinatorEvent event, absl::Time now) {
  CutTo(limits_.words, event.what);
  absl::MutexLock lock(&mutex_);
  const uint32_t job = event.job;
  Log& log = logs_[job];
  const uint64_t number = log.events.empty() ? 1 : log.events.back().number + 1;
  log.events.push_back({.number = number, .time = now, .event = std::move(event)});
  Trim(log);
  forgotten_.erase(job);
  ForgetJobs();
}

void EventLog::ForgetJobs() {
  while (logs_.size() > limits_.jobs + 1) {
    auto oldest = logs_.end();
    for (auto log = logs_.begin(); log != logs_.end(); ++log) {
      const bool is_older =
          oldest == logs_.end() ||
          log->second.events.back().time < oldest->second.events.back().time;
      if (log->first != 0 && is_older) oldest = log;
    }
    forgotten_.insert(oldest->first);
    logs_.erase(oldest);
  }
}

std::vector<StoreRecord> EventLog::Changes() const {
  absl::MutexLock lock(&mutex_);
  std::vector<StoreRecord> changes;
  for (const uint32_t job : forgotten_) changes.push_back({KeyOf(job), nullptr});
  for (const auto& [job, log] : logs_) {
    if (log.events.back().number == log.shown) continue;
    Json events = Json::array();
    for (const LoggedEvent& logged : log.events) events.push_back(ToJson(logged));
    const Json json = {{"version", kVersion},
                       {"name", log.events.back().event.job_name},
                       {"events", std::move(events)}};
    // Names come from members. Invalid UTF-8 in them must not end the process.
    changes.push_back({KeyOf(job), std::make_shared<const std::string>(json.dump(
                                       -1, ' ', false, Json::error_handler_t::replace))});
  }
  return changes;
}

void EventLog::Show() {
  absl::MutexLock lock(&mutex_);
  forgotten_.clear();
  for (auto& [job, log] : logs_) log.shown = log.events.back().number;
}

std::vector<LoggedEvent> EventLog::Of(uint32_t job) const {
  absl::MutexLock lock(&mutex_);
  const auto log = logs_.find(job);
  return log == logs_.end() ? std::vector<LoggedEvent>()
                            : log->second.Shown(limits_.events);
}

std::vector<LoggedEvent> EventLog::All() const {
  std::vector<LoggedEvent> all;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [job, log] : logs_)
      std::ranges::move(log.Shown(limits_.events), std::back_inserter(all));
  }
  std::ranges::stable_sort(all, {}, &LoggedEvent::time);
  return all;
}

std::vector<JobEnd> EventLog::Ends() const { return Ends(absl::Now()); }

std::vector<JobEnd> EventLog::Ends(absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  std::vector<JobEnd> ends;
  for (const auto& entry : logs_) {
    const auto& log = entry.second;  // clang 14 does not capture structured bindings
    const auto last_of = [&log](EventKind kind, const char* words) {
      return std::find_if(
          log.events.rbegin(), log.events.rend(), [&](const LoggedEvent& logged) {
            return logged.event.kind == kind && logged.number <= log.shown &&
                   absl::StrContains(logged.event.what, words);
          });
    };
    const auto end = last_of(EventKind::kEnd, "");
    if (end == log.events.rend()) continue;
    // Not the exits of stopped processes.
    const auto exit = last_of(EventKind::kExit, " died");
    ends.push_back({.last = *end,
                    .exit = exit == log.events.rend() ? "" : exit->event.what,
                    // The host's clock may have been set back.
                    .age = std::max(absl::ZeroDuration(), now - end->time)});
  }
  return ends;
}

std::map<uint32_t, std::vector<LoggedEvent>> EventLog::Latest(size_t most) const {
  absl::MutexLock lock(&mutex_);
  std::map<uint32_t, std::vector<LoggedEvent>> latest;
  for (const auto& [job, log] : logs_) latest[job] = log.Shown(most);
  return latest;
}

}  // namespace syncline
