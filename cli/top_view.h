// Draws the picture of `syncline top`, without a terminal: takes statuses and keys,
// returns lines.
//
//   TopView view({.coordinator = "127.0.0.1:7070"});
//   view.Add(json, now);             // once a second, comm/rpc/status_json.h
//   for (const TopLine& line : view.Draw({.columns = 80, .rows = 24})) …
//
// Rates are differences between statuses, so the first picture has none.
//
// Not thread-safe.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/goal_lines.h"
#include "comm/base/step_phases.h"
#include "nlohmann/json_fwd.hpp"

namespace syncline {

struct TopOptions {
  std::string coordinator;
  // Characters of spark lines. Block elements need a terminal that shows UTF-8.
  enum class Glyphs { kBlocks, kAscii } glyphs = Glyphs::kBlocks;
  // Jobs of which nothing is known yet but that they were started.
  std::vector<std::string> starting = {};
};

struct TopSize {
  size_t columns = 80;
  size_t rows = 24;
};

struct TopLine {
  enum class Tone { kPlain, kTitle, kHeader, kSelected, kWarning };
  std::string text;  // at most as many characters as there are columns
  Tone tone = Tone::kPlain;
};

enum class TopKey {
  kNextJob,
  kPreviousJob,
  kNextOrder,  // of members: by rank, slowest first, or oldest heartbeat first
  kPhases,     // toggles how the members' step times divide into phases
  kEvents,     // toggles recent events in place of the members
};

class TopView {
 public:
  explicit TopView(TopOptions options) : options_(std::move(options)) {}

  // `now` is monotonic. Fails with InternalError when `json` is not a status; the picture
  // then stays.
  absl::Status Add(const std::string& json, absl::Duration now);
  // Records that the coordinator did not answer. The last picture stays and says since
  // when.
  void Fail(const absl::Status& status, absl::Duration now);
  void Press(TopKey key);
  // Selects the newest job of that name. NotFound lists the known names.
  absl::Status Choose(const std::string& job);

  std::vector<TopLine> Draw(const TopSize& size) const;

 private:
  enum class Order { kRank, kBusy, kHeartbeat };

  struct Sample {
    absl::Duration time;
    uint64_t step = 0;
    uint64_t bytes = 0;
    bool waiting = false;
    WorkerPhases phases = {};  // of members only
  };
  struct Member {
    uint32_t rank = 0;
    uint32_t incarnation = 0;
    std::string name;
    double heartbeat_age = 0;
    std::deque<Sample> samples = {};

    double StepsPerSecond() const;
    double BytesPerSecond() const;
    // Fraction of the samples in which it did not wait for others. A member that others
    // wait for has 1.
    double Busy() const;
    // Returns recent seconds of each phase per step; nullopt before a step was seen.
    std::optional<WorkerPhases> PhasesOfAStep() const;
  };
  struct Job {
    uint32_t id = 0;
    std::string name, phase, reason, settings;
    uint64_t step = 0;
    uint32_t expected_workers = 0;
    double learning_rate = 0;
    uint64_t skipped_steps = 0;
    std::optional<double> loss = {};
    std::deque<double> losses = {};
    std::map<uint32_t, Member> members = {};  // by rank
    std::map<uint32_t, std::deque<ServerPhases>> servers = {};
    GoalsInShort goals = {};
    std::vector<std::string> events = {};         // lines, oldest first
    absl::Duration moved = absl::ZeroDuration();  // when its step last changed

    bool Ended() const { return phase == "over" || phase == "failed"; }
    // Returns the lowest rate of its members; 0 before two statuses were seen.
    double StepsPerSecond() const;
  };
  struct Server {
    uint32_t id = 0;
    std::string name, state;
    double heartbeat_age = 0;
    uint64_t memory_placed = 0, memory_budget = 0;
    std::deque<Sample> samples = {};  // bytes only

    double BytesPerSecond() const;
  };

  void AddJob(const nlohmann::json& status, absl::Duration now);
  void AddMember(const nlohmann::json& status, Job& job);
  void AddServer(const nlohmann::json& status, absl::Duration now);
  const Job* Selected() const;
  std::vector<const Member*> InOrder(const Job& job) const;
  struct SparkLine {
    std::vector<double> values = {};
    size_t width = 0;         // characters; the last values that fit
    double floor = INFINITY;  // upper bound of the lowest glyph's value
  };
  std::string Spark(const SparkLine& spark) const;
  std::string WaitsFor(const Job& job) const;

  void DrawTitle(std::vector<TopLine>& lines) const;
  void DrawServers(std::vector<TopLine>& lines) const;
  void DrawJobs(std::vector<TopLine>& lines) const;
  void DrawJob(const Job& job, std::vector<TopLine>& lines) const;
  TopLine DrawMember(const Job& job, const Member& member, size_t columns) const;
  TopLine DrawPhases(const Member& member, size_t columns) const;
  void DrawServerPhases(const Job& job, std::vector<TopLine>& lines) const;
  TopLine MemberHeader() const;
  void DrawMembers(const Job& job, const TopSize& size,
                   std::vector<TopLine>& lines) const;
  static std::vector<std::string> EventsOf(const nlohmann::json& status);
  // Draws the latest events that fit, of the job and of the servers.
  void DrawEvents(const Job* job, const TopSize& size, std::vector<TopLine>& lines) const;

  const TopOptions options_;
  std::string build_version_ = {};
  double uptime_seconds_ = 0;
  double late_seconds_ = 0;                 // age beyond which a heartbeat is late
  std::optional<absl::Duration> now_ = {};  // time of the last status
  std::map<uint32_t, Server> servers_ = {};
  std::map<uint32_t, Job> jobs_ = {};
  std::vector<std::string> events_ = {};  // of servers and coordinator
  uint32_t selected_ = 0;  // selected job; if it does not exist: the newest running one
  Order order_ = Order::kRank;
  bool shows_phases_ = false;
  bool shows_events_ = false;
  std::string failure_ = {};
  std::optional<absl::Duration> failed_since_ = {};
  absl::Duration failed_for_ = absl::ZeroDuration();
};

}  // namespace syncline
