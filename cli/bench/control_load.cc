#include "cli/bench/control_load.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cli/bench/control_member.h"
#include "cli/bench/figures.h"
#include "cli/bench/pace.h"
#include "comm/base/env.h"
#include "comm/base/status.h"
#include "comm/base/steady_condition.h"
#include "comm/base/timeouts.h"
#include "comm/rpc/announcement.h"
#include "comm/rpc/attach_stream.h"
#include "comm/rpc/channel.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace syncline {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kProbeEvery = absl::Milliseconds(20);
constexpr absl::Duration kCheckEvery = absl::Milliseconds(5);
constexpr size_t kReasonsShown = 3;
constexpr uint64_t kElementsPerTensor = 1000;
constexpr size_t kAddressBytes = 180;  // as for a UCX worker with two networks

v1::JobSpec MakeJob(const std::string& name, uint32_t workers, uint32_t tensors) {
  v1::JobSpec job;
  job.set_name(name);
  job.set_workers(workers);
  job.set_push_codec("bf16");
  job.set_publish_codec("bf16");
  v1::TrainingSpec& training = *job.mutable_training();
  training.mutable_optimizer()->set_name("adamw");
  v1::Option& learning_rate = *training.mutable_optimizer()->add_options();
  learning_rate.set_name("lr");
  learning_rate.set_value(1e-3);
  training.set_state("f32");
  training.mutable_schedule()->set_name("constant");
  for (uint32_t i = 0; i < tensors; ++i) {
    v1::TensorSpec& tensor = *job.add_tensors();
    tensor.set_name(absl::StrCat("model.layers.", i, ".attention.weight"));
    tensor.add_shape(kElementsPerTensor);
    tensor.set_learning_rate_scale(1);
  }
  return job;
}

v1::MemberMessage ServerHello(uint32_t number, uint32_t shards) {
  v1::MemberMessage message;
  v1::ServerHello& hello = *message.mutable_server_hello();
  hello.set_protocol_version(kProtocolVersion);
  hello.set_build_version(SYNCLINE_VERSION);
  hello.set_name(absl::StrCat("bench-server-", number));
  for (uint32_t i = 0; i < shards; ++i) {
    hello.add_shard_addresses(
        std::string(kAddressBytes, static_cast<char>('a' + i % 26)));
  }
  hello.set_lanes("bench");
  return message;
}

v1::MemberMessage Beat(uint64_t step) {
  v1::MemberMessage message;
  v1::Heartbeat& beat = *message.mutable_heartbeat();
  beat.set_step(step);
  beat.set_bytes(step << 20);
  v1::CompressionFigures& figures = *beat.mutable_compression();
  figures.set_pushed_values(step << 19);
  figures.set_pushed_value_bytes(step << 20);
  figures.set_encode_ns_per_value(0.3);
  figures.set_decode_ns_per_value(0.2);
  return message;
}

class Load {
 public:
  explicit Load(const ControlLoadOptions& options)
      : options_(options),
        timeouts_(Timeouts::Derive(absl::Seconds(options.failure_timeout))) {}
  ~Load();

  absl::StatusOr<Json> Run();

 private:
  // A member and what it has heard. Members live as long as the load.
  struct Member {
    bool is_server = false;
    std::shared_ptr<const v1::MemberMessage> declaration = nullptr;  // set for workers
    bool killed = false;
    bool welcomed = false;
    bool ended = false;
    uint32_t members = 0;  // in the last epoch that it heard of
    std::unique_ptr<ControlMember> stream = nullptr;
  };

  absl::Status Connect();
  void Add(Member member, v1::MemberMessage hello) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddWorkers(const v1::JobSpec& job, uint32_t workers) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Begin();
  absl::Status BeginLargeJob();
  absl::Status KillATenth();
  absl::Status WaitFor(absl::string_view what, bool (*holds)(const Load&, const Member&))
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnMessage(size_t index, const v1::CoordinatorMessage& message)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEnd(size_t index, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void BeatUntilOver() ABSL_LOCKS_EXCLUDED(mutex_);
  void ProbeUntilOver() ABSL_LOCKS_EXCLUDED(mutex_);
  void Mark(std::string_view what) const {
    if (options_.on_mark) options_.on_mark(what);
  }
  Json Report(double seconds) ABSL_LOCKS_EXCLUDED(mutex_);

  const ControlLoadOptions options_;
  const Timeouts timeouts_;
  const SteadyClock clock_;
  std::vector<std::unique_ptr<v1::Coordinator::Stub>> stubs_;
  ControlTraffic received_;
  ControlTraffic sent_;
  std::thread heart_;
  std::thread probe_;
  std::atomic<bool> over_ = false;
  std::atomic<uint64_t> beats_ = 0;  // sent during the scenario
  double begin_seconds_ = 0;

  absl::Mutex mutex_;
  // Never signalled, since the awaited state changes all the time.
  SteadyCondition changed_;
  std::vector<std::unique_ptr<Member>> members_ ABSL_GUARDED_BY(mutex_);
  // Number of workers left in a scenario with deaths.
  uint32_t survivors_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> reasons_ ABSL_GUARDED_BY(mutex_);
  std::vector<double> answers_ ABSL_GUARDED_BY(mutex_);  // seconds
};

Load::~Load() {
  over_ = true;
  if (heart_.joinable()) heart_.join();
  if (probe_.joinable()) probe_.join();
  absl::MutexLock lock(&mutex_);
  for (const auto& member : members_) {
    member->killed = true;
    member->stream->Kill();
  }
  const auto all_ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::ranges::all_of(members_, [](const auto& one) { return one->ended; });
  };
  mutex_.Await(absl::Condition(&all_ended));
}

absl::Status Load::Connect() {
  for (uint32_t i = 0; i < options_.channels; ++i) {
    // Channels with equal arguments share a connection, so each gets its own argument.
    grpc::ChannelArguments arguments;
    arguments.SetInt("syncline.bench_channel", static_cast<int>(i));
    arguments.SetMaxReceiveMessageSize(kMaxRpcMessageBytes);
    const auto channel = grpc::CreateCustomChannel(
        options_.coordinator, grpc::InsecureChannelCredentials(), arguments);
    SYNCLINE_RETURN_IF_ERROR(WaitUntilConnected(*channel, options_.coordinator, {},
                                                timeouts_.connect_timeout));
    stubs_.push_back(v1::Coordinator::NewStub(channel));
  }
  return absl::OkStatus();
}

void Load::Add(Member member, v1::MemberMessage hello) {
  ControlMember* stream = nullptr;
  size_t index = 0;
  {
    absl::MutexLock lock(&mutex_);
    index = members_.size();
    member.stream = std::make_unique<ControlMember>(ControlMemberEvents{
        .received = &received_,
        .sent = &sent_,
        .declaration = member.declaration,
        .on_message = [this, index](const auto& message) { OnMessage(index, message); },
        .on_end = [this, index](const auto& status) { OnEnd(index, status); }});
    stream = member.stream.get();
    members_.push_back(std::make_unique<Member>(std::move(member)));
  }
  stream->Start(*stubs_[index % stubs_.size()], std::move(hello));
}

void Load::AddWorkers(const v1::JobSpec& job, uint32_t workers) {
  Announcement announcement = Announce(job, {.run_id = "bench"});
  const auto declaration =
      std::make_shared<const v1::MemberMessage>(std::move(announcement.declaration));
  v1::WorkerHello& hello = *announcement.hello.mutable_worker_hello();
  for (uint32_t rank = 0; rank < workers; ++rank) {
    hello.set_rank(rank);
    hello.set_name(absl::StrCat("bench-host-", rank / 8, ":", 10000 + rank));
    Add({.declaration = declaration}, announcement.hello);
  }
}

void Load::OnMessage(size_t index, const v1::CoordinatorMessage& message) {
  absl::MutexLock lock(&mutex_);
  Member& member = *members_[index];
  if (message.has_server_welcome()) member.welcomed = true;
  if (message.has_worker_welcome()) {
    member.welcomed = true;
    member.members = message.worker_welcome().members();
  }
  if (message.has_epoch_changed()) member.members = message.epoch_changed().members();
}

void Load::OnEnd(size_t index, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  Member& member = *members_[index];
  member.ended = true;
  if (member.killed) return;
  ++lost_;
  if (reasons_.size() < kReasonsShown) reasons_.emplace_back(status.message());
}

// Waits until `holds` is true for all members that are left.
absl::Status Load::WaitFor(absl::string_view what,
                           bool (*holds)(const Load&, const Member&)) {
  const absl::Duration patience = std::max(absl::Minutes(1), 6 * timeouts_.no_progress);
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::ranges::all_of(members_, [&](const auto& one) {
      return one->ended || one->killed || holds(*this, *one);
    });
  };
  const absl::Duration deadline = clock_.Now() + patience;
  absl::MutexLock lock(&mutex_);
  while (!done() && clock_.Now() < deadline) changed_.WaitFor(mutex_, kCheckEvery);
  if (done()) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      what, " did not happen within ", absl::FormatDuration(patience), "; ", lost_,
      " members were lost", reasons_.empty() ? "" : ": " + reasons_.front()));
}

absl::Status Load::Begin() {
  for (uint32_t i = 0; i < options_.servers; ++i) {
    Add({.is_server = true}, ServerHello(i, options_.shards));
  }
  SYNCLINE_RETURN_IF_ERROR(
      WaitFor("the welcome of all servers",
              [](const Load&, const Member& m) { return m.welcomed; }));
  const v1::JobSpec job = MakeJob("bench", options_.workers, options_.tensors);
  const absl::Duration first_hello = clock_.Now();
  AddWorkers(job, options_.workers);
  SYNCLINE_RETURN_IF_ERROR(
      WaitFor("the welcome of all workers",
              [](const Load&, const Member& m) { return m.welcomed; }));
  begin_seconds_ = absl::ToDoubleSeconds(clock_.Now() - first_hello);
  return absl::OkStatus();
}

absl::Status Load::BeginLargeJob() {
  const v1::JobSpec job = MakeJob("bench-large", kLargeJobWorkers, kLargeJobTensors);
  AddWorkers(job, kLargeJobWorkers);
  return WaitFor("the beginning of the large job",
                 [](const Load&, const Member& m) { return m.welcomed; });
}

absl::Status Load::KillATenth() {
  {
    absl::MutexLock lock(&mutex_);
    survivors_ = options_.workers - std::max<uint32_t>(options_.workers / 10, 1);
    for (size_t i = options_.servers + survivors_; i < members_.size(); ++i) {
      members_[i]->killed = true;
      members_[i]->stream->Kill();
    }
  }
  return WaitFor("an epoch without those that died",
                 [](const Load& load, const Member& m) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                   return m.is_server || m.members == load.survivors_;
                 });
}

// Sends a heartbeat of each member every F/10, spread evenly.
void Load::BeatUntilOver() {
  constexpr absl::Duration kSlice = absl::Milliseconds(10);
  const int64_t slices = std::max<int64_t>(timeouts_.heartbeat_interval / kSlice, 1);
  Pace pace(clock_.Now(), kSlice);
  for (int64_t slice = 0; !over_; ++slice) {
    std::vector<ControlMember*> beating;
    {
      absl::MutexLock lock(&mutex_);
      for (size_t i = slice % slices; i < members_.size(); i += slices) {
        if (!members_[i]->ended && !members_[i]->killed)
          beating.push_back(members_[i]->stream.get());
      }
    }
    for (ControlMember* member : beating) member->Say(Beat(1 + slice / slices));
    beats_ += beating.size();
    absl::SleepFor(pace.Rest(clock_.Now()));
  }
}

// Measures the answer to a question about an unknown job, which the state machine must
// handle.
void Load::ProbeUntilOver() {
  while (!over_) {
    grpc::ClientContext context;
    v1::UpdateJobRequest request;
    request.set_job("nobody's");
    v1::UpdateJobReply reply;
    const absl::Duration asked = clock_.Now();
    (void)stubs_.front()->UpdateJob(&context, request, &reply);
    {
      absl::MutexLock lock(&mutex_);
      answers_.push_back(absl::ToDoubleSeconds(clock_.Now() - asked));
    }
    absl::SleepFor(kProbeEvery);
  }
}

Json Load::Report(double seconds) {
  Json report = {{"begin_seconds", begin_seconds_},
                 {"seconds", seconds},
                 {"received", received_.Report()},
                 {"sent", sent_.Report()}};
  report["beats_per_second"] = static_cast<double>(beats_) / seconds;
  absl::MutexLock lock(&mutex_);
  const auto beat = std::ranges::count_if(
      members_, [](const auto& one) { return !one->ended && !one->killed; });
  report["promised_beats_per_second"] =
      static_cast<double>(beat) / absl::ToDoubleSeconds(timeouts_.heartbeat_interval);
  report["lost"] = lost_;
  report["reasons"] = reasons_;
  if (answers_.empty()) answers_.push_back(0);
  report["answer_seconds"] = Quantiles(answers_);
  report["answer_seconds"]["max"] = *std::ranges::max_element(answers_);
  return report;
}

absl::StatusOr<Json> Load::Run() {
  SYNCLINE_RETURN_IF_ERROR(Connect());
  heart_ = std::thread([this] { BeatUntilOver(); });
  probe_ = std::thread([this] { ProbeUntilOver(); });
  const bool is_start = options_.scenario == "start";
  if (is_start) Mark(kScenarioBegins);
  SYNCLINE_RETURN_IF_ERROR(Begin());
  if (is_start) Mark(kScenarioEnds);
  if (is_start) return Report(begin_seconds_);
  received_.Reset();
  sent_.Reset();
  beats_ = 0;
  Mark(kScenarioBegins);
  const absl::Duration start = clock_.Now();
  if (options_.scenario == "steady") absl::SleepFor(absl::Seconds(options_.seconds));
  if (options_.scenario == "death") SYNCLINE_RETURN_IF_ERROR(KillATenth());
  if (options_.scenario == "tensors") SYNCLINE_RETURN_IF_ERROR(BeginLargeJob());
  const double seconds = absl::ToDoubleSeconds(clock_.Now() - start);
  Mark(kScenarioEnds);
  return Report(seconds);
}

}  // namespace

absl::StatusOr<Json> RunControlLoad(const ControlLoadOptions& options) {
  Load load(options);
  return load.Run();
}

}  // namespace syncline
