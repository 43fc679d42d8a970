#include "server/admin/advice.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncline {
namespace {

// A smaller part of a step than this gets no advice.
constexpr double kWorthALook = 0.15;
// A job that computes for at least this part of a step needs no change.
constexpr double kMostlyComputes = 0.8;
constexpr double kSmallStepBytes = 256 << 10;
constexpr double kShortStepSeconds = 0.005;
// A link with less than this part of the others' speed is named.
constexpr double kMuchSlower = 0.7;
// If bytes need less than this part of the time for which workers wait, the link is not
// what they wait for.
constexpr double kLittleOfWait = 0.3;

using Figure = std::function<double(const WorkerFigures&)>;

std::vector<double> Sorted(const JobFigures& job, const Figure& figure) {
  std::vector<double> values;
  for (const WorkerFigures& worker : job.workers) values.push_back(figure(worker));
  std::ranges::sort(values);
  return values;
}

double Least(const JobFigures& job, WorkerPhase phase) {
  if (job.workers.empty()) return 0;
  return Sorted(job, [=](const auto& worker) { return worker.phases[phase]; }).front();
}

double Middle(const JobFigures& job, const Figure& figure) {
  const std::vector<double> values = Sorted(job, figure);
  return values.empty() ? 0 : values[values.size() / 2];
}

const ServerFigures* Longest(const JobFigures& job, ServerPhase phase) {
  const auto found = std::ranges::max_element(
      job.servers, {}, [=](const auto& server) { return server.phases[phase]; });
  return found == job.servers.end() ? nullptr : &*found;
}

double Of(const ServerFigures* server, ServerPhase phase) {
  return server == nullptr ? 0 : server->phases[phase];
}

// Servers acknowledge and publish between their work, so time in which they work is not
// counted as time of the network.
double ServerSeconds(const JobFigures& job) {
  return Of(Longest(job, ServerPhase::kStep), ServerPhase::kStep);
}

// The slowest worker waits for no other worker. Its waits, which all workers have, are
// therefore the network's.
double UplinkSeconds(const JobFigures& job) {
  if (job.is_one_host) return 0;
  const double push =
      Middle(job, [](const auto& worker) { return worker.phases[WorkerPhase::kPush]; });
  return std::max(0.0, push - ServerSeconds(job));
}
double DownlinkSeconds(const JobFigures& job) {
  if (job.is_one_host) return 0;
  return std::max(0.0, Least(job, WorkerPhase::kPublish) - ServerSeconds(job));
}

std::string Ms(double seconds) {
  const double ms = 1e3 * seconds;
  return absl::StrFormat("%.*f ms", ms < 10 ? 2 : 0, ms);
}

std::optional<Advice> IfWorthIt(const JobFigures& job, double seconds, Advice advice) {
  const double step = job.step_seconds();
  if (step <= 0) return std::nullopt;
  advice.share = seconds / step;
  advice.gain = std::min(advice.gain / step, advice.share);
  if (advice.share < kWorthALook) return std::nullopt;
  return advice;
}

bool IsDense(const std::string& codec) {
  return codec == "fp32" || codec == "bf16" || codec == "fp16";
}

// The next smaller codec, and the part of the bytes that it saves. Empty name: there is
// none, and larger or local steps are advised instead.
struct SmallerCodec {
  std::string name = {};
  double saves = 0;
};
SmallerCodec SmallerThan(const std::string& codec) {
  if (codec == "fp32") return {"int8", 0.74};
  if (IsDense(codec)) return {"int8", 0.48};
  if (absl::StartsWith(codec, "int") || absl::StartsWith(codec, "natural")) {
    return {"onebit", 0.85};
  }
  return {"", 0.5};
}

std::string ChangeOfWire(const char* option, const SmallerCodec& smaller) {
  if (smaller.name.empty()) {
    return "send less often: accumulate_steps=2 on the workers, or local SGD "
           "(docs/local_sgd.md)";
  }
  return absl::StrCat(option, "=", smaller.name, " (docs/compression.md)");
}

// ---- Links ----

using Speed = double WorkerFigures::*;

std::string Mbit(double bytes_per_second) {
  return absl::StrFormat("%.3g Mbit/s", 8e-6 * bytes_per_second);
}

// The measured links of one direction.
struct Links {
  double typical = 0;  // bytes in a second; the median
  double least = 0;
  uint32_t slowest = 0;  // rank
};
// Returns nullopt if no link was busy for long enough to be measured.
std::optional<Links> MeasuredLinks(const JobFigures& job, Speed speed) {
  std::vector<std::pair<double, uint32_t>> all;  // speed and rank
  for (const WorkerFigures& worker : job.workers) {
    if (worker.*speed > 0) all.emplace_back(worker.*speed, worker.rank);
  }
  if (all.empty()) return std::nullopt;
  std::ranges::sort(all);
  return Links{all[all.size() / 2].first, all.front().first, all.front().second};
}

// A direction in which workers wait for the wire.
struct Way {
  JobBound bound = JobBound::kUplink;
  double waited = 0;  // seconds of a step
  double bytes = 0;   // of a step; 0: unknown
  Speed speed = nullptr;
  const char* option = "";  // that names its codec
  std::string codec = {};
  std::string what = {};
};

// If the links were measured, the gain is that of the time that the bytes need on them:
// they may have waited for something else.
std::optional<Advice> AdviseOnWay(const JobFigures& job, const Way& way) {
  const SmallerCodec smaller = SmallerThan(way.codec);
  Advice advice = {.bound = way.bound,
                   .gain = way.waited * smaller.saves,
                   .sure = way.waited > 2 * ServerSeconds(job) ? Advice::Sure::kVery
                                                               : Advice::Sure::kFairly,
                   .what = way.what,
                   .change = ChangeOfWire(way.option, smaller)};
  const std::optional<Links> links = MeasuredLinks(job, way.speed);
  if (!links || way.bytes <= 0) return IfWorthIt(job, way.waited, std::move(advice));
  const double needed = way.bytes / links->typical;
  absl::StrAppendFormat(&advice.what, "; its %.3g MB need %s at %s, as measured",
                        1e-6 * way.bytes, Ms(needed), Mbit(links->typical));
  if (links->least < kMuchSlower * links->typical) {
    absl::StrAppend(&advice.what, ", and the link of worker ", links->slowest,
                    " is slower: ", Mbit(links->least));
    absl::StrAppend(&advice.change, "; or mend the link of worker ", links->slowest);
  }
  advice.gain = std::min(way.waited, needed) * smaller.saves;
  if (needed < kLittleOfWait * way.waited) {
    advice.sure = Advice::Sure::kLittle;
    advice.change = absl::StrCat(
        "find what holds these bytes up besides the link: busy cores of workers or "
        "servers, or a detour; ",
        advice.change, " saves little");
  }
  return IfWorthIt(job, way.waited, std::move(advice));
}

}  // namespace

double WorkerFigures::total() const {
  return std::accumulate(phases.seconds.begin(), phases.seconds.end(), 0.0);
}

double JobFigures::step_seconds() const {
  double longest = 0;
  for (const WorkerFigures& worker : workers) longest = std::max(longest, worker.total());
  return longest;
}

const char* BoundName(JobBound bound) {
  switch (bound) {
    case JobBound::kCompute:
      return "compute";
    case JobBound::kStraggler:
      return "straggler";
    case JobBound::kUplink:
      return "uplink";
    case JobBound::kDownlink:
      return "downlink";
    case JobBound::kServerCpu:
      return "server_cpu";
    case JobBound::kDecision:
      return "decision";
    case JobBound::kFewServers:
      return "few_servers";
    case JobBound::kCodec:
      return "codec";
    case JobBound::kSmallSteps:
      return "small_steps";
  }
  return "";
}

const char* SureName(Advice::Sure sure) {
  return sure == Advice::Sure::kVery     ? "very"
         : sure == Advice::Sure::kFairly ? "fairly"
                                         : "little";
}

// ---- Rules ----

std::optional<Advice> AdviseOnCompute(const JobFigures& job) {
  const double step = job.step_seconds();
  const double least = Least(job, WorkerPhase::kCompute);
  if (step <= 0 || least < kMostlyComputes * step) return std::nullopt;
  return Advice{
      .bound = JobBound::kCompute,
      .share = least / step,
      .gain = 1 - least / step,
      .sure = Advice::Sure::kVery,
      .what = absl::StrFormat("every worker computes for %.0f %% of a step or more",
                              100 * least / step),
      .change =
          "nothing in servers, codecs or network: speed up the program itself, or use "
          "faster devices"};
}

std::optional<Advice> AdviseOnStraggler(const JobFigures& job) {
  if (job.workers.size() < 2) return std::nullopt;
  const auto own = [](const WorkerFigures& worker) {
    return worker.total() - worker.phases[WorkerPhase::kOthers] -
           worker.phases[WorkerPhase::kPublish];
  };
  const auto slowest = std::ranges::max_element(job.workers, {}, own);
  const std::vector<double> all = Sorted(job, own);
  const double next = all[all.size() - 2];
  const double excess = all.back() - next;
  // There is a straggler only if the others wait for about as long.
  const auto wait = [](const WorkerFigures& worker) {
    return worker.phases[WorkerPhase::kOthers] + worker.phases[WorkerPhase::kPublish];
  };
  const double waited = Sorted(job, wait).back();
  if (waited < 0.5 * excess) return std::nullopt;
  const double computes = slowest->phases[WorkerPhase::kCompute];
  const double pushes = slowest->phases[WorkerPhase::kPush];
  const bool by_link = pushes > computes;
  const double link = slowest->sent_bytes_per_second;
  return IfWorthIt(
      job, excess,
      {.bound = JobBound::kStraggler,
       .gain = excess,
       .sure =
           wait(*slowest) < 0.2 * waited ? Advice::Sure::kVery : Advice::Sure::kFairly,
       .what = absl::StrCat("worker ", slowest->rank, by_link ? " pushes" : " computes",
                            " for ", Ms(by_link ? pushes : computes), " of a step",
                            by_link && link > 0 ? absl::StrCat(" at ", Mbit(link)) : "",
                            ", and is ready ", Ms(excess),
                            " after all others, which wait for it"),
       .change =
           absl::StrCat(by_link ? "check its network, or move it nearer to the servers"
                                : "check its host (other programs, throttling, an older "
                                  "device), or give it a smaller part of each batch",
                        "; if a different worker is slow each time, mode=ssp:staleness=3 "
                        "(docs/modes.md)")});
}

std::optional<Advice> AdviseOnUplink(const JobFigures& job) {
  const double up = UplinkSeconds(job);
  return AdviseOnWay(
      job, {.bound = JobBound::kUplink,
            .waited = up,
            .bytes = job.pushed_bytes_per_step,
            .speed = &WorkerFigures::sent_bytes_per_second,
            .option = "push",
            .codec = job.push_codec,
            .what = absl::StrCat("workers wait for ", Ms(up),
                                 " of a step until the servers have their gradients "
                                 "(pushes ",
                                 job.push_codec, ")")});
}

std::optional<Advice> AdviseOnDownlink(const JobFigures& job) {
  const double down = DownlinkSeconds(job);
  return AdviseOnWay(
      job, {.bound = JobBound::kDownlink,
            .waited = down,
            .bytes = job.pushed_bytes_per_step > 0
                         ? job.bytes_per_step - job.pushed_bytes_per_step
                         : 0,
            .speed = &WorkerFigures::received_bytes_per_second,
            .option = "publish",
            .codec = job.publish_codec,
            .what = absl::StrCat("every worker waits for ", Ms(down),
                                 " of a step until the rest of the new weights is here "
                                 "(publishes ",
                                 job.publish_codec, ")")});
}

std::optional<Advice> AdviseOnServerCpu(const JobFigures& job) {
  const ServerFigures* busiest = Longest(job, ServerPhase::kStep);
  if (busiest == nullptr) return std::nullopt;
  const double seconds = busiest->phases[ServerPhase::kStep];
  const double waits = job.step_seconds() - Least(job, WorkerPhase::kCompute);
  // Work of a server costs nothing while workers compute. Within a host, workers wait
  // only for servers, for other work on their cores, and for decisions of the
  // coordinator.
  const double waited =
      Middle(job, [](const auto& one) { return one.phases[WorkerPhase::kPush]; }) +
      Least(job, WorkerPhase::kOthers) + Least(job, WorkerPhase::kPublish);
  const double decided = Of(Longest(job, ServerPhase::kDecide), ServerPhase::kDecide);
  const double answers = std::max(0.0, waited - decided);
  const double felt = std::min(job.is_one_host ? answers : seconds, waits);
  return IfWorthIt(
      job, felt,
      {.bound = JobBound::kServerCpu,
       .gain = felt / 2,
       .sure = felt > 0.6 * waits && seconds > 0.6 * felt ? Advice::Sure::kVery
                                                          : Advice::Sure::kFairly,
       .what = absl::StrCat("an engine of server ", busiest->server, " works for ",
                            Ms(seconds), " of a step",
                            job.is_one_host ? absl::StrCat(", and workers of its host "
                                                           "wait for ",
                                                           Ms(answers))
                                            : ""),
       .change = "twice as many servers or engine threads (serve --engine-threads), on "
                 "cores of their own"});
}

std::optional<Advice> AdviseOnDecision(const JobFigures& job) {
  const ServerFigures* longest = Longest(job, ServerPhase::kDecide);
  const double seconds = Of(longest, ServerPhase::kDecide);
  return IfWorthIt(
      job, seconds,
      {.bound = JobBound::kDecision,
       .gain = seconds,
       .sure = Advice::Sure::kVery,
       .what = absl::StrCat("servers wait for ", Ms(seconds),
                            " of a step until all have reported and the coordinator has "
                            "decided (clipping, skipping or loss scaling)"),
       .change = "a coordinator near the servers; or clipping that needs no decision, by "
                 "value or by tensor (docs/training.md)"});
}

std::optional<Advice> AdviseOnFewServers(const JobFigures& job) {
  const double workers =
      static_cast<double>(job.workers.size() + job.without_a_step.size());
  const double servers = static_cast<double>(job.servers.size());
  if (servers == 0 || workers <= servers) return std::nullopt;
  const double wire = UplinkSeconds(job) + DownlinkSeconds(job);
  const double saved = wire * (1 - servers / workers);
  return IfWorthIt(
      job, saved,
      {.bound = JobBound::kFewServers,
       .gain = saved,
       .sure = Advice::Sure::kLittle,
       .what = absl::StrFormat("%.0f servers carry the bytes of %.0f workers, which wait "
                               "for %s of a step for the wire",
                               servers, workers, Ms(wire)),
       .change =
           absl::StrFormat("%.0f servers, if all cables are equally fast", workers)});
}

std::optional<Advice> AdviseOnCodec(const JobFigures& job) {
  const double seconds = Middle(job, [](const WorkerFigures& worker) {
    return worker.phases[WorkerPhase::kEncode] + worker.phases[WorkerPhase::kDecode];
  });
  const double wire = UplinkSeconds(job) + DownlinkSeconds(job);
  const bool pays = wire * job.compression > seconds;
  const bool is_dense = IsDense(job.push_codec) && IsDense(job.publish_codec);
  return IfWorthIt(
      job, seconds,
      {.bound = JobBound::kCodec,
       .gain = pays ? seconds / 2 : std::max(0.0, seconds - wire * job.compression),
       .sure = pays || is_dense ? Advice::Sure::kLittle : Advice::Sure::kFairly,
       .what = absl::StrCat(
           "workers wait for ", Ms(seconds),
           " of a step while gradients are encoded and weights decoded "
           "(pushes ",
           job.push_codec, ", publishes ", job.publish_codec, ")",
           pays ? "" : absl::StrCat(", and only ", Ms(wire), " for the wire")),
       .change = is_dense ? "more cores for each worker: its data plane shares them with "
                            "the program"
                 : pays   ? "a cheaper codec of the same size, such as onebit or int8 "
                            "(syncline bench codec), or push=auto"
                          : "push=bf16 and publish=bf16: compression does not pay here"});
}

std::optional<Advice> AdviseOnSmallSteps(const JobFigures& job) {
  const double step = job.step_seconds();
  const double waits = step - Least(job, WorkerPhase::kCompute);
  const bool is_small = job.bytes_per_step < kSmallStepBytes && step < kShortStepSeconds;
  if (!is_small || waits < 0.5 * step) return std::nullopt;
  return IfWorthIt(
      job, waits / 2,
      {.bound = JobBound::kSmallSteps,
       .gain = waits / 2,
       .sure = Advice::Sure::kLittle,
       .what = absl::StrFormat(
           "a step carries %.0f kB and takes %s: it waits for round trips, not for bytes",
           job.bytes_per_step / 1e3, Ms(step)),
       .change = "fewer and larger steps: larger batches, accumulate_steps, or local SGD "
                 "(docs/local_sgd.md)"});
}

std::vector<Advice> Advise(const JobFigures& job) {
  constexpr AdviceRule kRules[] = {
      AdviseOnCompute,    AdviseOnStraggler, AdviseOnUplink,
      AdviseOnDownlink,   AdviseOnServerCpu, AdviseOnDecision,
      AdviseOnFewServers, AdviseOnCodec,     AdviseOnSmallSteps};
  std::vector<Advice> all;
  for (const AdviceRule rule : kRules) {
    if (auto advice = rule(job)) all.push_back(*std::move(advice));
  }
  std::ranges::stable_sort(all, std::ranges::greater(), &Advice::share);
  return all;
}

}  // namespace syncline
