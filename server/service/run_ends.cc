#include "server/service/run_ends.h"

#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/time.h"

namespace syncline {
namespace {

constexpr size_t kMaxEnded = 16;
// The coordinator shows ended jobs of its own process for the same time.
constexpr absl::Duration kShownFor = absl::Hours(1);
constexpr char kFailed[] = "the job has failed: ";
constexpr char kOver[] = "the job is over: ";

void Write(const JobEnd& end, v1::RunEnd& out) {
  const std::string& what = end.last.event.what;
  const bool has_failed = absl::StartsWith(what, kFailed);
  const std::string begin = has_failed ? kFailed : kOver;
  out.set_job(end.last.event.job);
  out.set_phase(has_failed ? "failed" : "over");
  out.set_reason(absl::StartsWith(what, begin) ? what.substr(begin.size()) : what);
  if (has_failed) out.set_exit(end.exit);
  out.set_step(end.last.event.step);
  out.set_age_seconds(absl::ToDoubleSeconds(end.age));
}

void WriteJob(const JobEnd& end, v1::JobStatus& out) {
  Write(end, *out.mutable_ended());
  out.set_job(end.last.event.job);
  out.set_name(end.last.event.job_name);
  out.set_phase(out.ended().phase());
  out.set_reason(out.ended().reason());
  out.set_step(out.ended().step());
}

}  // namespace

void AppendEnds(const std::vector<JobEnd>& ends, v1::StatusReply& reply) {
  // Job numbers only grow, also across restarts.
  std::map<std::string, std::map<uint32_t, const JobEnd*>> by_name;
  for (const JobEnd& end : ends) {
    by_name[end.last.event.job_name][end.last.event.job] = &end;
  }
  for (v1::JobStatus& job : *reply.mutable_jobs()) {
    const auto named = by_name.find(job.name());
    if (named == by_name.end()) continue;
    const auto own = named->second.lower_bound(job.job());
    if (own != named->second.end() && own->first == job.job()) {
      Write(*own->second, *job.mutable_ended());
    }
    if (own != named->second.begin()) {
      Write(*std::prev(own)->second, *job.mutable_before());
    }
    by_name.erase(named);
  }
  std::map<uint32_t, const JobEnd*, std::greater<>> others;  // the latest first
  for (const auto& [name, of_name] : by_name) {
    const auto& [job, end] = *of_name.rbegin();
    if (end->age < kShownFor) others[job] = end;
  }
  size_t shown = 0;
  for (const auto& [job, end] : others) {
    if (shown++ == kMaxEnded) break;
    v1::JobStatus& added = *reply.add_jobs();
    WriteJob(*end, added);
    const auto& of_name = by_name.at(added.name());
    if (of_name.size() > 1) {
      Write(*std::next(of_name.rbegin())->second, *added.mutable_before());
    }
  }
}

}  // namespace syncline
