#include "cli/events.h"

#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "cli/flags.h"
#include "cli/local_runs.h"
#include "cli/output_width.h"
#include "comm/base/exit_codes.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/rpc/event_json.h"
#include "proto/coordinator.pb.h"

namespace syncline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(3);
constexpr absl::Duration kAskEvery = absl::Seconds(1);
constexpr size_t kMostBytes = 2048;  // of a sentence: more than is kept of one

struct EventsFlags {
  std::string job;
  bool follow = false;
  OutputFormat format = OutputFormat::kTable;
  std::string coordinator;
  TlsOptions tls;
};

// Prints each event once, however often it is fetched.
class Printer {
 public:
  explicit Printer(const EventsFlags& flags) : flags_(flags) {}

  void Print(const v1::EventsReply& reply) {
    const EventLayout layout = {
        .columns = flags_.job.empty() ? EventColumns::kWithJob : EventColumns::kOfOneJob,
        .zone = absl::LocalTimeZone(),
        .width = OutputColumns()};
    for (const v1::Event& event : reply.events()) {
      uint64_t& last = printed_[event.job()];
      if (event.number() <= last) continue;
      last = event.number();
      std::cout << (flags_.format == OutputFormat::kJson ? EventAsJson(event)
                                                         : EventLine(event, layout))
                << "\n";
    }
    std::cout << std::flush;
  }

 private:
  const EventsFlags& flags_;
  std::map<uint32_t, uint64_t> printed_;  // the last number of each job
};

// A coordinator that is away may come back with what it had stored, and a job begin that
// nobody has heard of yet.
absl::StatusOr<int> ShowEvents(const EventsFlags& flags) {
  Printer printer(flags);
  bool answers = true;
  for (bool is_first = true; std::cout; is_first = false) {
    const auto reply = FetchEvents(flags.coordinator, flags.tls, flags.job, kTimeout);
    const bool may_follow =
        flags.follow && (!is_first || absl::IsNotFound(reply.status()));
    if (reply.ok()) {
      printer.Print(*reply);
    } else if (!may_follow) {
      return reply.status();
    } else if (answers) {
      std::cerr << "syncline: " << reply.status().message() << "; asking again"
                << std::endl;
    }
    answers = reply.ok();
    if (!flags.follow) break;
    absl::SleepFor(kAskEvery);
  }
  return kExitDone;
}

}  // namespace

std::string EventLine(const v1::Event& event, const EventLayout& layout) {
  const auto ms = static_cast<int64_t>(event.time() * 1000);
  std::string line = absl::StrCat(
      absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(ms), layout.zone), "  ");
  const size_t after_time = line.size();
  if (layout.columns == EventColumns::kWithJob) {
    absl::StrAppendFormat(&line, "%-16s  ",
                          event.job() == 0 ? "-" : Printable(event.job_name()));
  }
  // Servers and the coordinator make no steps.
  const std::string step = event.job() == 0 ? "" : absl::StrCat("step ", event.step());
  absl::StrAppendFormat(&line, "%-13s  %-11s  %s", step, Printable(event.kind()),
                        Printable(event.what(), kMostBytes));
  return BrokenLine(line, layout.width, after_time);
}

void AddEvents(CLI::App& app, Command* selected) {
  auto flags = std::make_shared<EventsFlags>();
  CLI::App* events = app.add_subcommand(
      "events", "Show what happened: joins, deaths, epochs, settings, recoveries");
  events->add_option("job", flags->job, "Name of a job; without it, of everything");
  events->add_flag("--follow", flags->follow, "Go on with what happens from now on");
  AddCoordinatorFlag(*events, &flags->coordinator);
  AddOutputFlag(*events, &flags->format);
  AddTlsFlags(*events, &flags->tls);
  events->callback([=] { *selected = [flags] { return Asking(*flags, ShowEvents); }; });
}

}  // namespace syncline
