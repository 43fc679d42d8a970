#include "cli/top_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/human_bytes.h"
#include "cli/job_choice.h"
#include "cli/output_width.h"
#include "comm/base/byte_size.h"
#include "comm/base/printable.h"
#include "comm/base/unknown_job.h"
#include "comm/rpc/status_phases.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

using Json = nlohmann::json;

// A minute of statuses is kept. Rates are those of the last ten seconds.
constexpr size_t kSamples = 60;
constexpr size_t kRateSamples = 10;
// Each point of a member's speed spans this many statuses. Statuses and heartbeats come
// at about the same rate, so between two statuses there may be no heartbeat or two.
constexpr size_t kSparkSamples = 4;
constexpr size_t kServersShown = 4;
constexpr size_t kJobsShown = 5;
// A heartbeat older than this is marked, in failure timeouts. Members send ten in one
// timeout, and are dropped after 0.6 of it.
constexpr double kLateHeartbeat = 0.3;
// The default, for coordinators too old to report theirs.
constexpr double kUsualFailureTimeoutSeconds = 10;
// After this time without a step, the job is shown as waiting for those who work.
constexpr absl::Duration kStandsStill = absl::Seconds(2);
constexpr double kStraggles = 0.25;  // difference to the median of `busy`

constexpr std::array<const char*, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<const char*, 8> kAscii = {"_", ".", "-", "~", "=", "+", "*", "#"};

std::string Word(const Json& object, const char* key) {
  const std::string word = object.value(key, "");
  return word.empty() ? "-" : Printable(word);
}

std::string Rate(double per_second) {
  return absl::StrFormat("%.*f", per_second < 10 ? 2 : 0, per_second);
}

std::string Duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  if (whole < 60) return absl::StrFormat("%d s", whole);
  if (whole < 3600) return absl::StrFormat("%d min %d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %d min", whole / 3600, whole / 60 % 60);
}

// Returns the growth of `figure` per second over the last samples; 0 with fewer than two.
template <typename Samples, typename Figure>
double Growth(const Samples& samples, Figure figure) {
  if (samples.size() < 2) return 0;
  const auto& last = samples.back();
  const auto& first =
      samples[samples.size() - std::min(samples.size(), kRateSamples + 1)];
  const double seconds = absl::ToDoubleSeconds(last.time - first.time);
  if (seconds <= 0 || figure(last) < figure(first)) return 0;
  return static_cast<double>(figure(last) - figure(first)) / seconds;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <typename Values>
void Keep(Values& values, const typename Values::value_type& value) {
  values.push_back(value);
  if (values.size() > kSamples) values.pop_front();
}

}  // namespace

// ---- Input ----

double TopView::Member::StepsPerSecond() const {
  return Growth(samples, [](const auto& sample) { return sample.step; });
}

double TopView::Member::BytesPerSecond() const {
  return Growth(samples, [](const auto& sample) { return sample.bytes; });
}

double TopView::Server::BytesPerSecond() const {
  return Growth(samples, [](const auto& sample) { return sample.bytes; });
}

double TopView::Member::Busy() const {
  if (samples.empty()) return 0;
  const auto waited = std::count_if(samples.begin(), samples.end(),
                                    [](const Sample& sample) { return sample.waiting; });
  return 1 - static_cast<double>(waited) / static_cast<double>(samples.size());
}

double TopView::Job::StepsPerSecond() const {
  double lowest = 0;
  for (const auto& [rank, member] : members) {
    const double rate = member.StepsPerSecond();
    if (lowest == 0 || rate < lowest) lowest = rate;
  }
  return lowest;
}

absl::Status TopView::Add(const std::string& json, absl::Duration now) {
  const Json status = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!status.is_object()) {
    return absl::InternalError(
        absl::StrCat(options_.coordinator, " sent a status that is not JSON"));
  }
  failure_.clear();
  failed_since_.reset();
  build_version_ = Word(status, "build_version");
  uptime_seconds_ = status.value("uptime_seconds", 0.0);
  const double failure_timeout = status.value("failure_timeout_seconds", 0.0);
  late_seconds_ = kLateHeartbeat *
                  (failure_timeout > 0 ? failure_timeout : kUsualFailureTimeoutSeconds);

  std::set<uint32_t> present;
  for (const Json& server : status.value("servers", Json::array())) {
    present.insert(server.value("server", 0U));
    AddServer(server, now);
  }
  std::erase_if(servers_,
                [&](const auto& entry) { return !present.contains(entry.first); });

  present.clear();
  for (const Json& job : status.value("jobs", Json::array())) {
    present.insert(job.value("job", 0U));
    AddJob(job, now);
  }
  std::erase_if(jobs_, [&](const auto& entry) { return !present.contains(entry.first); });
  events_ = EventsOf(status);
  now_ = now;
  return absl::OkStatus();
}

void TopView::AddServer(const Json& status, absl::Duration now) {
  const auto id = status.value("server", 0U);
  Server& server = servers_[id];
  server.id = id;
  server.name = Word(status, "name");
  server.state = status.contains("lost_seconds") ? "lost"
                 : status.value("drains", false) ? "draining"
                                                 : "attached";
  server.heartbeat_age = status.value("heartbeat_age_seconds", 0.0);
  server.memory_placed = status.value("memory_placed_bytes", uint64_t{0});
  server.memory_budget = status.value("memory_budget_bytes", uint64_t{0});
  Keep(server.samples, Sample{.time = now, .bytes = status.value("bytes", uint64_t{0})});
}

void TopView::AddJob(const Json& status, absl::Duration now) {
  const auto id = status.value("job", 0U);
  Job& job = jobs_[id];
  const uint64_t step = status.value("step", uint64_t{0});
  if (job.id != id || step != job.step) job.moved = now;
  job.id = id;
  job.name = Word(status, "name");
  job.phase = status.value("phase", "");
  job.reason = Printable(status.value("reason", ""));
  const std::string mode = Word(status, "mode");
  job.settings = absl::StrCat(mode.empty() ? "" : absl::StrCat("mode ", mode, ", "),
                              "pushes ", Word(status, "push_codec"), ", publishes ",
                              Word(status, "publish_codec"));
  job.step = step;
  job.expected_workers = status.value("expected_workers", 0U);
  job.learning_rate = status.value("learning_rate", 0.0);
  job.skipped_steps = status.value("skipped_steps", uint64_t{0});
  job.events = EventsOf(status);
  job.goals = ShortGoalLine(status);
  if (const auto loss = status.find("loss"); loss != status.end() && loss->is_number()) {
    job.loss = loss->get<double>();
    Keep(job.losses, *job.loss);
  }
  std::set<uint32_t> present;
  for (const Json& member : status.value("members", Json::array())) {
    const auto rank = member.value("rank", 0U);
    present.insert(rank);
    AddMember(member, job);
    Keep(job.members[rank].samples,
         Sample{.time = now,
                .step = member.value("step", uint64_t{0}),
                .bytes = member.value("bytes", uint64_t{0}),
                .waiting = member.value("waiting", false),
                .phases =
                    PhasesOf(member.value("phases", Json::object()), kWorkerPhaseNames)});
  }
  for (const Json& server : status.value("server_phases", Json::array())) {
    std::deque<ServerPhases>& kept = job.servers[server.value("server", 0U)];
    kept.push_back(PhasesOf(server, kServerPhaseNames));
    if (kept.size() > kRateSamples + 1) kept.pop_front();
  }
  std::erase_if(job.members,
                [&](const auto& entry) { return !present.contains(entry.first); });
}

void TopView::AddMember(const Json& status, Job& job) {
  const auto rank = status.value("rank", 0U);
  const auto incarnation = status.value("incarnation", 0U);
  Member& member = job.members[rank];
  if (member.incarnation != incarnation) member = {};
  member.rank = rank;
  member.incarnation = incarnation;
  member.name = Word(status, "name");
  member.heartbeat_age = status.value("heartbeat_age_seconds", 0.0);
}

void TopView::Fail(const absl::Status& status, absl::Duration now) {
  failure_ = Printable(std::string(status.message()));
  if (!failed_since_) failed_since_ = now;
  failed_for_ = now - *failed_since_;
}

// ---- Selection ----

const TopView::Job* TopView::Selected() const {
  if (const auto job = jobs_.find(selected_); job != jobs_.end()) return &job->second;
  const Job* newest = nullptr;
  for (const auto& [id, job] : jobs_) {
    if (newest == nullptr || newest->Ended() || !job.Ended()) newest = &job;
  }
  return newest;
}

void TopView::Press(TopKey key) {
  if (key == TopKey::kNextOrder) {
    order_ = order_ == Order::kRank   ? Order::kBusy
             : order_ == Order::kBusy ? Order::kHeartbeat
                                      : Order::kRank;
    return;
  }
  if (key == TopKey::kPhases) {
    shows_phases_ = !shows_phases_;
    return;
  }
  if (key == TopKey::kEvents) {
    shows_events_ = !shows_events_;
    return;
  }
  const Job* job = Selected();
  if (job == nullptr) return;
  auto next = jobs_.find(job->id);
  if (key == TopKey::kNextJob) {
    if (++next == jobs_.end()) next = jobs_.begin();
  } else {
    if (next == jobs_.begin()) next = jobs_.end();
    --next;
  }
  selected_ = next->first;
}

absl::Status TopView::Choose(const std::string& job) {
  std::vector<std::string_view> names;
  bool is_there = false;
  for (const auto& [id, known] : jobs_) {
    names.push_back(known.name);
    if (known.name != job) continue;
    selected_ = id;
    is_there = true;
  }
  return is_there ? absl::OkStatus() : UnknownJob(job, names, JobSet::kKnown);
}

std::vector<const TopView::Member*> TopView::InOrder(const Job& job) const {
  std::vector<const Member*> members;
  for (const auto& [rank, member] : job.members) members.push_back(&member);
  std::stable_sort(members.begin(), members.end(), [&](const Member* a, const Member* b) {
    if (order_ == Order::kBusy) return a->Busy() > b->Busy();
    return order_ == Order::kHeartbeat && a->heartbeat_age > b->heartbeat_age;
  });
  return members;
}

// ---- Drawing ----

std::string TopView::Spark(const SparkLine& spark) const {
  const auto& [values, width, floor] = spark;
  const auto& glyphs = options_.glyphs == TopOptions::Glyphs::kBlocks ? kBlocks : kAscii;
  const size_t first = values.size() - std::min(values.size(), width);
  double low = floor, high = -INFINITY;
  for (size_t i = first; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    low = std::min(low, values[i]);
    high = std::max(high, values[i]);
  }
  std::string line;
  for (size_t i = first; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      line += "!";
      continue;
    }
    const double part = high > low ? (values[i] - low) / (high - low) : 0;
    line += glyphs[static_cast<size_t>(std::lround(part * (glyphs.size() - 1)))];
  }
  return line;
}

std::string TopView::WaitsFor(const Job& job) const {
  if (job.phase != "running" || !now_ || *now_ - job.moved < kStandsStill) return "";
  std::vector<std::string> working;
  for (const auto& [rank, member] : job.members) {
    const Sample& last = member.samples.back();
    if (!last.waiting && last.step <= job.step) working.push_back(absl::StrCat(rank));
  }
  if (working.empty() || working.size() == job.members.size()) return "";
  constexpr size_t kShown = 8;
  const size_t more = working.size() - std::min(working.size(), kShown);
  working.resize(working.size() - more);
  return absl::StrFormat("has waited at step %d for rank %s%s for %.0f s", job.step,
                         absl::StrJoin(working, ", "),
                         more > 0 ? absl::StrCat(" and ", more, " more") : "",
                         absl::ToDoubleSeconds(*now_ - job.moved));
}

void TopView::DrawTitle(std::vector<TopLine>& lines) const {
  lines.push_back({absl::StrFormat("syncline %s  coordinator %s  up %s", build_version_,
                                   options_.coordinator, Duration(uptime_seconds_)),
                   TopLine::Tone::kTitle});
  if (!failure_.empty()) {
    lines.push_back({absl::StrFormat("no answer for %.0f s: %s",
                                     absl::ToDoubleSeconds(failed_for_), failure_),
                     TopLine::Tone::kWarning});
  }
}

void TopView::DrawServers(std::vector<TopLine>& lines) const {
  lines.push_back({absl::StrFormat("%-6s %-20s %-11s %-24s %-5s %s", "SERVER", "NAME",
                                   "BYTES/S", "MEMORY", "BEAT", "STATE"),
                   TopLine::Tone::kHeader});
  // If not all servers fit, those with the oldest heartbeats come first.
  std::vector<const Server*> servers;
  for (const auto& [id, server] : servers_) servers.push_back(&server);
  if (servers.size() > kServersShown) {
    std::stable_sort(servers.begin(), servers.end(),
                     [](const Server* a, const Server* b) {
                       return a->heartbeat_age > b->heartbeat_age;
                     });
  }
  for (size_t i = 0; i < std::min(servers.size(), kServersShown); ++i) {
    const Server& server = *servers[i];
    std::string memory = FormatByteSize(server.memory_placed);
    if (server.memory_budget > 0) {
      absl::StrAppend(&memory, " of ", FormatByteSize(server.memory_budget));
    }
    const bool late = server.heartbeat_age > late_seconds_;
    lines.push_back(
        {absl::StrFormat("%-6d %s %-11s %s %-5s %s", server.id, Fitted(server.name, 20),
                         HumanBytes(server.BytesPerSecond()), Fitted(memory, 24),
                         absl::StrFormat("%.1fs", server.heartbeat_age), server.state),
         late ? TopLine::Tone::kWarning : TopLine::Tone::kPlain});
  }
  if (servers.size() > kServersShown) {
    lines.push_back(
        {absl::StrCat("       and ", servers.size() - kServersShown, " more")});
  }
}

void TopView::DrawJobs(std::vector<TopLine>& lines) const {
  const Job* selected = Selected();
  std::vector<const Job*> jobs;
  for (const auto& [id, job] : jobs_) jobs.push_back(&job);
  // Order: the selected job, then running jobs, then the newest.
  std::stable_sort(jobs.begin(), jobs.end(), [&](const Job* a, const Job* b) {
    if ((a == selected) != (b == selected)) return a == selected;
    if (a->Ended() != b->Ended()) return b->Ended();
    return a->id > b->id;
  });
  const size_t shown = std::min(jobs.size(), kJobsShown);
  const size_t more = jobs.size() - shown;
  jobs.resize(shown);
  std::sort(jobs.begin(), jobs.end(),
            [](const Job* a, const Job* b) { return a->id < b->id; });
  lines.push_back({absl::StrFormat("  %-20s %-9s %-8s %9s %8s  %s", "JOB", "PHASE",
                                   "WORKERS", "STEP", "STEPS/S", "LOSS"),
                   TopLine::Tone::kHeader});
  for (const Job* job : jobs) {
    const std::string loss = job->loss ? absl::StrFormat("%.4g", *job->loss) : "-";
    lines.push_back(
        {absl::StrFormat(
             "%s %s %-9s %-8s %9d %8s  %s %s", job == selected ? ">" : " ",
             Fitted(job->name, 20), job->phase,
             absl::StrCat(job->members.size(), " of ", job->expected_workers), job->step,
             Rate(job->StepsPerSecond()), loss,
             Spark({.values = {job->losses.begin(), job->losses.end()}, .width = 12})),
         job == selected ? TopLine::Tone::kSelected : TopLine::Tone::kPlain});
  }
  if (more > 0) lines.push_back({absl::StrCat("  and ", more, " more")});
}

void TopView::DrawJob(const Job& job, std::vector<TopLine>& lines) const {
  std::string line =
      absl::StrFormat("  %s; learning rate %g", job.settings, job.learning_rate);
  if (job.skipped_steps > 0) {
    absl::StrAppend(&line, "; ", job.skipped_steps, " steps skipped");
  }
  lines.push_back({line});
  if (!job.goals.line.empty()) {
    lines.push_back({"  " + job.goals.line, job.goals.is_any_missed
                                                ? TopLine::Tone::kWarning
                                                : TopLine::Tone::kPlain});
  }
  if (!job.reason.empty()) lines.push_back({absl::StrCat("  ", job.reason)});
  if (const std::string waits = WaitsFor(job); !waits.empty()) {
    lines.push_back({absl::StrCat("  ", waits), TopLine::Tone::kWarning});
  }
}

TopLine TopView::DrawMember(const Job& job, const Member& member, size_t columns) const {
  uint64_t front = job.step;
  std::vector<double> busy;
  for (const auto& [rank, other] : job.members) {
    front = std::max(front, other.samples.back().step);
    busy.push_back(other.Busy());
  }
  const Sample& last = member.samples.back();
  std::vector<double> rates;
  for (size_t i = kSparkSamples; i < member.samples.size(); ++i) {
    const Sample& a = member.samples[i - kSparkSamples];
    const Sample& b = member.samples[i];
    const double seconds = absl::ToDoubleSeconds(b.time - a.time);
    rates.push_back(b.step < a.step || seconds <= 0
                        ? 0
                        : static_cast<double>(b.step - a.step) / seconds);
  }
  const bool straggles = job.members.size() > 1 &&
                         member.samples.size() >= kRateSamples &&
                         member.Busy() > Median(busy) + kStraggles;
  const bool late = member.heartbeat_age > late_seconds_;
  const std::string cells = absl::StrFormat(
      "  %4d %s %9d %6d %8s %11s %4.0f%% %5.1fs ", member.rank, Fitted(member.name, 13),
      last.step, front - last.step, Rate(member.StepsPerSecond()),
      absl::StrCat(HumanBytes(member.BytesPerSecond())), 100 * member.Busy(),
      member.heartbeat_age);
  const size_t left = columns - std::min(columns, CharactersOf(cells));
  return {cells + Spark({.values = rates, .width = left, .floor = 0}),
          straggles || late ? TopLine::Tone::kWarning : TopLine::Tone::kPlain};
}

void TopView::DrawMembers(const Job& job, const TopSize& size,
                          std::vector<TopLine>& lines) const {
  if (shows_phases_) DrawServerPhases(job, lines);
  lines.push_back(MemberHeader());
  const std::vector<const Member*> members = InOrder(job);
  // One line is kept for the number of members left out.
  const size_t room = size.rows > lines.size() + 2 ? size.rows - lines.size() - 2 : 0;
  const size_t shown = members.size() <= room + 1 ? members.size() : room;
  for (size_t i = 0; i < shown; ++i) {
    lines.push_back(shows_phases_ ? DrawPhases(*members[i], size.columns)
                                  : DrawMember(job, *members[i], size.columns));
  }
  if (shown < members.size()) {
    lines.push_back({absl::StrCat("  and ", members.size() - shown, " more")});
  }
}

std::vector<TopLine> TopView::Draw(const TopSize& size) const {
  std::vector<TopLine> lines;
  DrawTitle(lines);
  if (servers_.empty()) {
    lines.push_back({"no servers yet, or none that this certificate may see"});
  } else {
    DrawServers(lines);
  }
  lines.push_back({});
  if (jobs_.empty()) {
    for (const absl::string_view line : absl::StrSplit(NoJobs(options_.starting), '\n'))
      lines.push_back({std::string(line)});
  } else {
    DrawJobs(lines);
  }
  const Job* job = Selected();
  if (job != nullptr) DrawJob(*job, lines);
  if (shows_events_) {
    DrawEvents(job, size, lines);
  } else if (job != nullptr && !job->members.empty()) {
    DrawMembers(*job, size, lines);
  }
  if (lines.size() + 1 > size.rows) lines.resize(size.rows > 0 ? size.rows - 1 : 0);
  lines.push_back({"q quit   Tab next job   s order of members   p phases   e events",
                   TopLine::Tone::kTitle});
  for (TopLine& line : lines) line.text = Clipped(line.text, size.columns);
  return lines;
}

}  // namespace syncline
