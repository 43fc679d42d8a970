#include "cli/trace.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "cli/flags.h"
#include "cli/local_runs.h"
#include "cli/trace_file.h"
#include "cli/version.h"
#include "comm/base/env.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/rpc/coordinator_call.h"
#include "comm/rpc/trace_sender.h"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);
constexpr absl::Duration kAskEvery = absl::Milliseconds(200);
// Time for members to send the rest after they were told to stop: a few heartbeats.
constexpr absl::Duration kLastPartsWithin = absl::Seconds(10);

struct TraceFlags {
  std::string job;
  uint32_t steps = 20;
  std::string out = "trace.json";
  std::string wait = "1m";
  std::string coordinator;
  TlsOptions tls;
};

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

// Fetches parts of the trace until it is complete or the time is over.
class Collector {
 public:
  Collector(const TraceFlags& flags, absl::Duration wait,
            const CoordinatorCaller& coordinator)
      : flags_(flags), wait_(wait), coordinator_(coordinator) {}

  absl::StatusOr<TraceData> Collect() {
    SYNCLINE_RETURN_IF_ERROR(Start());
    while (!IsOver()) {
      if (!reply_.more()) absl::SleepFor(kAskEvery);
      const absl::Status fetched = Fetch();
      if (fetched.ok()) continue;
      // The spans that have arrived are still useful.
      if (reply_.until() == 0) return fetched;
      data_.ended = absl::StrCat("the coordinator was lost: ", fetched.message());
      break;
    }
    return Finish();
  }

 private:
  absl::Status Start() {
    v1::StartTraceRequest request;
    request.set_job(flags_.job);
    request.set_steps(flags_.steps);
    request.set_limit_ms(
        static_cast<uint32_t>(absl::ToInt64Milliseconds(wait_ + kLastPartsWithin)));
    SYNCLINE_ASSIGN_OR_RETURN(
        const v1::StartTraceReply reply,
        coordinator_.Call(&v1::Coordinator::Stub::StartTrace, request, kTimeout));
    trace_ = reply.trace();
    for (const v1::TraceTensor& tensor : reply.tensors()) {
      const std::string name = Printable(tensor.name());
      for (uint32_t part = 1; part <= tensor.blocks(); ++part) {
        const bool is_whole = tensor.blocks() == 1;
        data_.blocks.push_back(
            is_whole ? name
                     : absl::StrCat(name, ", part ", part, " of ", tensor.blocks()));
      }
    }
    return absl::OkStatus();
  }

  bool IsOver() {
    if (reply_.phase() == "done" && !reply_.more()) return true;
    const absl::Duration passed = clock_.Now();
    if (passed < wait_) return false;
    if (!stops_) {
      data_.ended =
          absl::StrCat("the time limit ended it after ", absl::FormatDuration(wait_));
    }
    stops_ = true;
    return passed >= wait_ + kLastPartsWithin;
  }

  absl::Status Fetch() {
    v1::FetchTraceRequest request;
    request.set_job(flags_.job);
    request.set_trace(trace_);
    request.set_seen(seen_);
    request.set_stop(stops_);
    SYNCLINE_ASSIGN_OR_RETURN(
        reply_, coordinator_.Call(&v1::Coordinator::Stub::FetchTrace, request, kTimeout));
    data_.members.resize(static_cast<size_t>(reply_.members_size()));
    for (const v1::FetchedPart& part : reply_.parts()) Take(part);
    return absl::OkStatus();
  }

  void Take(const v1::FetchedPart& part) {
    ++seen_;
    if (part.member() >= data_.members.size()) return;
    const auto spans = UnpackSpans(part.packed());
    if (!spans.ok()) return;
    std::vector<TraceSpan>& track =
        data_.members[part.member()].tracks[Printable(part.track())];
    track.insert(track.end(), spans->begin(), spans->end());
  }

  absl::StatusOr<TraceData> Finish() {
    data_.job = flags_.job;
    data_.version = VersionLine();
    data_.first_step = reply_.first_step();
    data_.until = std::max(reply_.until(), reply_.first_step());
    uint64_t worked = 0;  // number of spans that belong to making a step
    for (int i = 0; i < reply_.members_size(); ++i) {
      const v1::TraceMember& said = reply_.members(i);
      TraceFileMember& member = data_.members[static_cast<size_t>(i)];
      member.is_worker = said.role() == "worker";
      member.number = said.number();
      member.name = Printable(said.name());
      member.answered = said.answered();
      member.done = said.done();
      member.gone = said.gone();
      member.lost = said.lost();
      member.dropped = said.dropped();
      if (said.has_clock()) {
        member.clock = {said.clock().offset_ns(), said.clock().error_ns(),
                        said.clock().unix_ns()};
      }
      for (const auto& [name, spans] : member.tracks) {
        worked += static_cast<uint64_t>(
            std::ranges::count_if(spans, [&](const TraceSpan& span) {
              return !DescribesTheProgram(span.kind) && span.step >= data_.first_step &&
                     span.step < data_.until;
            }));
      }
    }
    if (worked > 0) return std::move(data_);
    return NothingRecorded();
  }

  absl::Status NothingRecorded() const {
    const std::string job = absl::StrCat("job '", Printable(flags_.job), "'");
    if (stops_) {
      return absl::FailedPreconditionError(absl::StrCat(
          job, " made no step within ", absl::FormatDuration(wait_),
          "; syncline status says what it waits for, and --wait sets how long to wait"));
    }
    return absl::FailedPreconditionError(
        absl::StrCat(job, " ended before a step could be recorded"));
  }

  const TraceFlags& flags_;
  const absl::Duration wait_;
  const CoordinatorCaller& coordinator_;
  const SteadyClock clock_;
  uint64_t trace_ = 0;
  uint64_t seen_ = 0;
  bool stops_ = false;
  v1::FetchTraceReply reply_;
  TraceData data_;
};

// Written under this name first, so that the file itself is always complete.
std::string UnfinishedOf(const std::string& path) {
  return absl::StrCat(path, ".unfinished");
}

absl::Status CannotWrite(const std::string& path) {
  return absl::PermissionDeniedError(
      absl::StrCat("cannot write --out '", path, "': ", std::strerror(errno),
                   "; name a file in a directory that you may write to"));
}

// Called before the job is asked, so that no trace is recorded in vain.
absl::Status CheckWritable(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    errno = EISDIR;
    return CannotWrite(path);
  }
  const std::string unfinished = UnfinishedOf(path);
  if (!std::ofstream(unfinished)) return CannotWrite(path);
  std::remove(unfinished.c_str());
  return absl::OkStatus();
}

absl::StatusOr<TraceSummary> WriteFile(const TraceData& data, const std::string& path) {
  const std::string unfinished = UnfinishedOf(path);
  std::ofstream file(unfinished);
  TraceSummary summary = WriteTrace(data, file);
  file.close();
  if (!file.fail() && std::rename(unfinished.c_str(), path.c_str()) == 0) return summary;
  const absl::Status failed = CannotWrite(path);
  std::remove(unfinished.c_str());
  return failed;
}

absl::StatusOr<int> Trace(const TraceFlags& flags) {
  if (flags.job.empty()) return Usage("trace needs the name of a running job");
  if (flags.steps == 0) return Usage("--steps 0: a trace has at least one");
  SYNCLINE_ASSIGN_OR_RETURN(const absl::Duration wait,
                            ParseDurationFlag("--wait", flags.wait));
  if (wait <= absl::ZeroDuration() || wait > absl::Minutes(20)) {
    return Usage("--wait: at most 20m");
  }
  SYNCLINE_RETURN_IF_ERROR(CheckWritable(flags.out));
  SYNCLINE_ASSIGN_OR_RETURN(
      const CoordinatorCaller coordinator,
      CoordinatorCaller::Connect(flags.coordinator, flags.tls, kTimeout));
  SYNCLINE_ASSIGN_OR_RETURN(const TraceData data,
                            Collector(flags, wait, coordinator).Collect());
  SYNCLINE_ASSIGN_OR_RETURN(const TraceSummary summary, WriteFile(data, flags.out));
  std::cout << absl::StrFormat(
      "%s: job %s, steps %d to %d, %d members, %d spans; open it at "
      "https://ui.perfetto.dev\n",
      flags.out, Printable(flags.job), data.first_step, data.until - 1,
      data.members.size(), summary.spans);
  for (const std::string& missing : summary.missing) {
    std::cout << "missing: " << missing << "\n";
  }
  return kExitDone;
}

}  // namespace

void AddTrace(CLI::App& app, Command* selected) {
  auto flags = std::make_shared<TraceFlags>();
  CLI::App* trace =
      app.add_subcommand("trace", "Record the next steps of a running job as a timeline");
  trace->add_option("job", flags->job, "Name of the job");
  trace->add_option("--steps", flags->steps, "How many")->capture_default_str();
  trace->add_option("--out", flags->out, "File to write, for ui.perfetto.dev")
      ->capture_default_str();
  trace->add_option("--wait", flags->wait, "How long the steps may take")
      ->capture_default_str();
  AddCoordinatorFlag(*trace, &flags->coordinator);
  AddTlsFlags(*trace, &flags->tls);
  trace->callback([=] { *selected = [flags] { return Asking(*flags, Trace); }; });
}

}  // namespace syncline
