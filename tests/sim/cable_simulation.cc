#include "tests/sim/cable_simulation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/base/event_queue.h"
#include "comm/transport/inproc/inproc.h"
#include "tests/sim/control_plane.h"
#include "tests/sim/random_job.h"
#include "tests/sim/random_network.h"
#include "tests/sim/reference.h"
#include "tests/sim/server_process.h"
#include "tests/sim/traffic.h"
#include "tests/sim/worker_process.h"

namespace syncline::sim {
namespace {

constexpr absl::Duration kF = absl::Seconds(10);
constexpr absl::Duration kLookEvery = absl::Milliseconds(20);
constexpr uint64_t kLooksToCheck = 10;  // heartbeats are checked at every tenth look
constexpr absl::Duration kLongestRun = absl::Hours(3);  // in simulated time
constexpr uint64_t kSteps = 6;
constexpr double kMostBytes = 1.1;
constexpr double kUnderWay = 1 << 20;  // bytes of a killed worker, both ways
constexpr double kMostTime = 1.15;
// What a step takes beside bytes: computing, encoding and delays, and twice the bytes that
// each worker may have before a short message (send_window.h).
constexpr absl::Duration kOwnTime = absl::Milliseconds(150);
constexpr double kQueued = 16 << 10;
constexpr char kCoordinator[] = "coordinator";

InprocOptions SmallDelays(Random& random) {
  InprocOptions options;
  options.seed = random();
  options.faults.max_delay = absl::Microseconds(Between(random, 20, 5000));
  return options;
}

// Returns a job whose gradients take up to a minute on the slowest cables.
JobSpec DrawJob(Random& random, uint32_t workers) {
  static constexpr std::array<const char*, 4> kCodecs = {"bf16", "fp32", "int8",
                                                         "topk:ratio=0.1"};
  JobSpec job{.name = "cables", .workers = workers};
  job.training.optimizer = {.name = "sgd", .options = {{"lr", 0.01}}};
  job.settings.push_codec = kCodecs[random() % kCodecs.size()];
  job.settings.publish_codec = OneIn(random, 3) ? job.settings.push_codec : "bf16";
  const auto most = static_cast<uint64_t>(3000 * std::pow(20, Between(random, 0, 1)));
  for (uint64_t i = 2 + random() % 6; i > 0; --i) {
    job.tensors.push_back(
        {.name = absl::StrCat("tensor", i), .shape = {most / 2 + random() % most}});
  }
  return job;
}

class CableRun {
 public:
  CableRun(uint64_t seed, CableFault fault)
      : random_(seed),
        fault_(fault),
        wanted_(1 + static_cast<uint32_t>(random_() % 4)),
        job_(DrawJob(random_, wanted_)),
        codecs_(CodecRegistry::Builtin()),
        network_(events_, SmallDelays(random_)),
        timeouts_(Timeouts::Derive(kF)),
        servers_wanted_(1 + static_cast<uint32_t>(random_() % 2)),
        control_(events_, {.timeouts = timeouts_, .expected_servers = servers_wanted_},
                 random_()),
        reference_(job_),
        joins_(OneIn(random_, 2)),
        kills_(wanted_ > 1 && OneIn(random_, 2)) {}

  absl::Status Execute();

 private:
  void LayCables();
  void StartServer(uint32_t number);
  void StartWorker();
  void OnWorkerEnd(uint32_t rank, const absl::Status& status);
  void Look();
  void Disturb();
  void CheckHeartbeats();
  bool IsOver() const;
  void CheckBytes();
  void CheckTime();
  void CheckWeights();
  // Returns how long the busiest cable has carried something.
  absl::Duration BusyTime() const;
  void Violate(std::string what) {
    if (violation_.empty()) violation_ = std::move(what);
  }
  std::string Describe() const;

  Random random_;
  const CableFault fault_;
  const uint32_t wanted_;
  const JobSpec job_;
  const CodecRegistry codecs_;
  EventQueue events_;
  InprocNetwork network_;
  const Timeouts timeouts_;
  const uint32_t servers_wanted_;
  ControlPlane control_;
  Reference reference_;
  const bool joins_, kills_;
  Traffic traffic_;
  std::map<uint32_t, Disk> disks_;
  std::map<std::string, CableRates> rates_;  // by host
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;  // by rank
  std::optional<uint32_t> killed_;                       // rank
  std::optional<uint64_t> newest_began_at_;              // step
  uint64_t looks_ = 0;
  // When the first worker had made a step, and what cables had carried by then.
  std::optional<absl::Duration> stepped_at_;
  absl::Duration busy_at_step_ = {};
  std::string violation_;
};

// All cables are alike, or each host has its own, or one host's are slow.
void CableRun::LayCables() {
  std::vector<std::string> hosts = {kCoordinator};
  for (uint32_t i = 0; i < servers_wanted_; ++i) {
    hosts.push_back(absl::StrCat("server", i));
  }
  for (uint32_t rank = 0; rank <= wanted_; ++rank) {  // one may join
    hosts.push_back(absl::StrCat("worker", rank));
  }
  const uint64_t kind = random_() % 3;
  const double same = RandomRate(random_);
  const size_t slow = random_() % hosts.size();
  for (size_t i = 0; i < hosts.size(); ++i) {
    const double up = kind == 1                ? RandomRate(random_)
                      : kind == 2 && i != slow ? 125e6
                                               : same;
    const double down = kind == 1 && OneIn(random_, 2) ? RandomRate(random_) : up;
    rates_[hosts[i]] = {.up = up, .down = down};
    network_.cables().Lay(hosts[i], rates_[hosts[i]]);
  }
  control_.UseCables(network_.cables(), kCoordinator);
}

void CableRun::StartServer(uint32_t number) {
  const std::string host = absl::StrCat("server", number);
  servers_.push_back(std::make_unique<ServerProcess>(
      ServerProcess::Parts{.events = events_,
                           .network = network_,
                           .control = control_,
                           .reference = reference_,
                           .traffic = traffic_,
                           .codecs = codecs_,
                           .heartbeat_interval = timeouts_.heartbeat_interval,
                           .engines = 1 + static_cast<uint32_t>(random_() % 3),
                           .disk = disks_[number],
                           .seed = random_(),
                           .host = host},
      host));
}

void CableRun::StartWorker() {
  const auto rank = static_cast<uint32_t>(workers_.size());
  Timeouts timeouts = timeouts_;
  if (fault_ == CableFault::kBeatsLate) timeouts.heartbeat_interval = kF / 3;
  workers_.push_back(std::make_unique<WorkerProcess>(
      WorkerProcess::Parts{
          .events = events_,
          .network = network_,
          .control = control_,
          .reference = reference_,
          .traffic = traffic_,
          .codecs = codecs_,
          .job = job_,
          .timeouts = timeouts,
          .target_step = kSteps,
          .slowness = fault_ == CableFault::kComputesLong ? 1000.0 : 1.0,
          .pushes_twice = fault_ == CableFault::kPushesTwice,
          .seed = random_(),
          .host = absl::StrCat("worker", rank),
          .on_end = [this](uint32_t who,
                           const absl::Status& status) { OnWorkerEnd(who, status); }},
      rank));
}

void CableRun::OnWorkerEnd(uint32_t rank, const absl::Status& status) {
  Violate(absl::StrCat("rank ", rank, " is innocent: ", status.ToString()));
}

void CableRun::Look() {
  Disturb();
  if (++looks_ % kLooksToCheck == 0) CheckHeartbeats();
  if (!stepped_at_ && workers_[0]->step() > 0) {
    stepped_at_ = events_.now();
    if (fault_ == CableFault::kExcludes) control_.Exclude(job_.name, 0);
    busy_at_step_ = BusyTime();
  }
  events_.After(kLookEvery, [this] { Look(); });
}

// A worker joins once the job steps. Another one is killed once that has made a step.
void CableRun::Disturb() {
  const bool has_joined = workers_.size() > wanted_;
  if (joins_ && !has_joined && workers_[0]->step() > 0) return StartWorker();
  const WorkerProcess& newest = *workers_.back();
  if (!newest.incarnation() || has_joined != joins_) return;
  if (!newest_began_at_) newest_began_at_ = newest.step();
  if (!kills_ || killed_ || newest.step() <= *newest_began_at_) return;
  killed_ = wanted_ - 1;
  workers_[*killed_]->Kill();
}

void CableRun::CheckHeartbeats() {
  const auto check = [this](const std::string& who, absl::Duration age) {
    if (age <= kF / 4) return;
    Violate(absl::StrCat("the last heartbeat of ", who, " is ", absl::FormatDuration(age),
                         " old"));
  };
  const CoordinatorView view = control_.View();
  for (const ServerView& server : view.servers) {
    check(absl::StrCat("server ", server.server), server.heartbeat_age);
  }
  for (const JobView& job : view.jobs) {
    for (const MemberView& member : job.members) {
      if (member.rank == killed_) continue;
      check(absl::StrCat("rank ", member.rank), member.heartbeat_age);
    }
  }
}

bool CableRun::IsOver() const {
  for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
    if (rank != killed_ && !workers_[rank]->IsDone()) return false;
  }
  return true;
}

void CableRun::CheckBytes() {
  const absl::Status status = traffic_.Check({.absences = joins_ + kills_});
  if (!status.ok()) Violate(std::string(status.message()));
  // Every message has a header. The killed worker's last blocks may have been on the way.
  const uint64_t small = traffic_.messages() * kMessageHeaderBytes +
                         control_.messages() * ControlPlane::kMessageBytes;
  const double allowed = kMostBytes * static_cast<double>(traffic_.necessary_bytes()) +
                         static_cast<double>(small) + (kills_ ? kUnderWay : 0.0);
  const uint64_t sent = network_.cables().sent_bytes();
  if (static_cast<double>(sent) > allowed) {
    Violate(absl::StrCat(sent, " bytes were sent, and ", traffic_.necessary_bytes(),
                         " of blocks and ", small, " of small messages were necessary"));
  }
}

absl::Duration CableRun::BusyTime() const {
  absl::Duration busiest = {};
  for (const auto& [host, rates] : rates_) {
    busiest = std::max(busiest, network_.cables().BusyTime(host));
  }
  return busiest;
}

// A step pushes all tensors while views of others come back. But a server sends the view
// of its last tensor once all have pushed it, and the first push crosses a second cable. A
// worker that joins or dies makes others wait for more than bytes.
void CableRun::CheckTime() {
  if (joins_ || kills_ || !stepped_at_) return;
  uint64_t all = 0, largest = 0;
  for (const TensorSpec& tensor : job_.tensors) {
    all += tensor.elements();
    largest = std::max(largest, tensor.elements());
  }
  double slowest = 125e6;
  for (const auto& [host, rates] : rates_) {
    slowest = std::min({slowest, rates.up, rates.down});
  }
  const double of_server = static_cast<double>(all) / servers_wanted_;
  const double alone = std::min(1.0, static_cast<double>(largest) / of_server);
  const absl::Duration needed = BusyTime() - busy_at_step_;
  const absl::Duration waits =
      kSteps * (kOwnTime + absl::Seconds(2 * kQueued * wanted_ / slowest));
  const absl::Duration took = events_.now() - *stepped_at_;
  if (took <= kMostTime * needed * (1 + 2 * alone) + waits) return;
  Violate(absl::StrCat("the steps took ", absl::FormatDuration(took),
                       ", and the busiest cable needs ", absl::FormatDuration(needed)));
}

void CableRun::CheckWeights() {
  const Reference::Model model = reference_.After(kSteps);
  for (uint32_t rank = 0; rank < workers_.size(); ++rank) {
    if (rank == killed_) continue;
    for (size_t tensor = 0; tensor < model.views.size(); ++tensor) {
      const std::vector<float>& held = workers_[rank]->weights()[tensor];
      if (std::ranges::equal(held, model.views[tensor], SameBits)) continue;
      Violate(absl::StrCat("rank ", rank, " holds other weights in tensor ", tensor));
    }
  }
}

absl::Status CableRun::Execute() {
  LayCables();
  for (uint32_t i = 0; i < servers_wanted_; ++i) StartServer(i);
  for (uint32_t rank = 0; rank < wanted_; ++rank) StartWorker();
  Look();
  while (!IsOver() && violation_.empty() && reference_.violation().empty()) {
    const bool goes_on = events_.RunNext() && events_.now() < kLongestRun;
    if (!goes_on) Violate("the run does not end");
  }
  if (violation_.empty() && reference_.violation().empty()) {
    CheckBytes();
    CheckTime();
    CheckWeights();
  }
  Violate(reference_.violation());
  if (violation_.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(violation_, "; ", Describe()));
}

std::string CableRun::Describe() const {
  std::string text =
      absl::StrCat("after ", absl::FormatDuration(events_.now()), ", cables of Mbit/s");
  for (const auto& [host, rates] : rates_) {
    absl::StrAppend(&text, " ", host, " ", rates.up / 125e3, "/", rates.down / 125e3);
  }
  absl::StrAppend(&text, "; ", job_.tensors.size(), " tensors of about ",
                  job_.tensors[0].elements(), ", ", job_.settings.push_codec, ", ",
                  job_.settings.publish_codec, joins_ ? ", one joins" : "",
                  kills_ ? ", one is killed" : "");
  for (const auto& worker : workers_) absl::StrAppend(&text, "; ", worker->Describe());
  return text;
}

}  // namespace

absl::Status SimulateCables(uint64_t seed, CableFault fault) {
  return CableRun(seed, fault).Execute();
}

}  // namespace syncline::sim
