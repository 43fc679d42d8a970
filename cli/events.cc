#include "cli/events.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
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
constexpr size_t kMaxBytes = 2048;  // of one sentence; longer than any that is stored

// Column widths, including the gap that follows.
constexpr size_t kGap = 2;
constexpr size_t kClockColumns = 8 + kGap;
constexpr size_t kDayColumns = 11;
constexpr size_t kStepColumns = 13 + kGap;
constexpr size_t kKindColumns = 11 + kGap;
// Width of the job column, at least and at most. A terminal below kWide columns gets the
// minimum.
constexpr size_t kLeastJobColumns = 12;
constexpr size_t kMaxJobColumns = 24;
constexpr size_t kWide = 120;

struct EventsFlags {
  std::string job;
  bool follow = false;
  OutputFormat format = OutputFormat::kTable;
  std::string coordinator;
  std::string given_coordinator;  // empty: the flag was not given
  TlsOptions tls;
};

// Prints each event once, although it is fetched repeatedly.
class Printer {
 public:
  explicit Printer(const EventsFlags& flags) : flags_(flags) {}

  void Print(const v1::EventsReply& reply) {
    if (!lines_) lines_.emplace(LayoutFor(reply));
    for (const v1::Event& event : reply.events()) {
      uint64_t& last = printed_[event.job()];
      if (event.number() <= last) continue;
      last = event.number();
      std::cout << (flags_.format == OutputFormat::kJson ? EventAsJson(event)
                                                         : lines_->Of(event))
                << "\n";
    }
    std::cout << std::flush;
  }
  // Another coordinator numbers its events from the start.
  void Forget() { printed_.clear(); }

 private:
  EventLayout LayoutFor(const v1::EventsReply& reply) const {
    EventLayout layout = {
        .columns = flags_.job.empty() ? EventColumns::kWithJob : EventColumns::kOfOneJob,
        .zone = absl::LocalTimeZone(),
        .width = OutputColumns()};
    for (const v1::Event& event : reply.events()) {
      layout.job_columns =
          std::max(layout.job_columns, CharactersOf(Printable(event.job_name())));
    }
    return layout;
  }

  const EventsFlags& flags_;
  std::optional<EventLines> lines_ = {};
  std::map<uint32_t, uint64_t> printed_;  // last number printed, by job
};

// With --follow, a coordinator that is away is asked again: it may come back with its
// stored events, or another run may have started one. A job that is unknown may still
// begin.
absl::StatusOr<int> ShowEvents(const EventsFlags& flags) {
  Printer printer(flags);
  std::string coordinator = flags.coordinator;
  bool answers = true;
  for (bool is_first = true; std::cout; is_first = false) {
    const auto reply = FetchEvents(coordinator, flags.tls, flags.job, kTimeout);
    const bool may_follow =
        flags.follow && (!is_first || absl::IsNotFound(reply.status()));
    if (reply.ok()) {
      printer.Print(*reply);
    } else if (!may_follow) {
      return reply.status();
    } else if (answers) {
      std::cerr << "syncline: " << reply.status().message() << "; retrying" << std::endl;
    }
    answers = reply.ok();
    if (!flags.follow) break;
    if (!answers) {
      const std::string now =
          CoordinatorToAskNow(flags.given_coordinator, flags.job, coordinator);
      if (std::exchange(coordinator, now) != now) printer.Forget();
    }
    absl::SleepFor(kAskEvery);
  }
  return kExitDone;
}

}  // namespace

EventLines::EventLines(const EventLayout& layout) : layout_(layout) {
  size_t& job = layout_.job_columns;
  job = std::max(job, kLeastJobColumns);
  const bool is_of_all = layout_.columns == EventColumns::kWithJob;
  const size_t width = layout_.width;
  if (width == 0) return;
  job = std::min(job, width < kWide ? kLeastJobColumns : kMaxJobColumns);
  const size_t needed = kClockColumns + (is_of_all ? job + kGap : 0) + kKindColumns;
  has_step_ = needed + kStepColumns <= width / 2;
  has_day_ = needed + kStepColumns + kDayColumns <= width / 2;
}

std::string EventLines::Of(const v1::Event& event) {
  const auto at = [&](const char* format) {
    const auto ms = static_cast<int64_t>(event.time() * 1000);
    return absl::FormatTime(format, absl::FromUnixMillis(ms), layout_.zone);
  };
  const std::string day = at("%Y-%m-%d");
  const bool is_new_day = std::exchange(day_, day) != day;
  std::string line = has_day_ ? day + " " : "";
  absl::StrAppend(&line, at("%H:%M:%S"), "  ");
  if (layout_.columns == EventColumns::kWithJob) {
    const std::string job = event.job() == 0 ? "-" : Printable(event.job_name());
    absl::StrAppend(&line,
                    layout_.width == 0 ? Padded(job, layout_.job_columns)
                                       : FittedAtEnd(job, layout_.job_columns),
                    "  ");
  }
  // Events of servers and of the coordinator have no step.
  const std::string step = event.job() == 0 ? "" : absl::StrCat("step ", event.step());
  if (has_step_) absl::StrAppendFormat(&line, "%-13s  ", step);
  absl::StrAppendFormat(&line, "%-11s  ", Printable(event.kind()));
  const size_t hanging = CharactersOf(line);
  line += Printable(event.what(), kMaxBytes);
  return absl::StrCat(is_new_day && !has_day_ ? day + "\n" : "",
                      BrokenLine(line, layout_.width, hanging));
}

void AddEvents(CLI::App& app, Command* selected) {
  auto flags = std::make_shared<EventsFlags>();
  CLI::App* events = app.add_subcommand(
      "events", "Show what happened: joins, deaths, epochs, settings, recoveries");
  events->add_option("job", flags->job,
                     "Name of a job (default: show the events of the whole cluster)");
  events->add_flag("--follow", flags->follow,
                   "Keep running, and show new events as they happen");
  AddCoordinatorFlag(*events, &flags->coordinator);
  AddOutputFlag(*events, &flags->format);
  AddTlsFlags(*events, &flags->tls);
  events->callback([=] { *selected = [flags] { return Asking(*flags, ShowEvents); }; });
}

}  // namespace syncline
