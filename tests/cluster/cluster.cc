#include "tests/cluster/cluster.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "comm/base/check.h"
#include "comm/base/status.h"
#include "comm/base/timeouts.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/status.h"
#include "proto/coordinator.grpc.pb.h"

namespace syncline::cluster {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);
constexpr absl::Duration kPause = absl::Milliseconds(10);

}  // namespace

Cluster::Cluster(const ClusterOptions& options) : options_(options) {
  const Timeouts timeouts = Timeouts::Derive(options.failure_timeout);
  CoordinatorServiceOptions service;
  service.coordinator.timeouts = timeouts;
  service.coordinator.expected_servers =
      options.expected_servers > 0 ? options.expected_servers : options.servers;
  service.store = &store_;
  service_ = *CoordinatorService::Create(std::move(service));
  ServerOptions server;
  server.listen = "127.0.0.1:0";
  server.timeouts = RpcTimeouts::From(timeouts);
  server.services = {service_.get()};
  running_ = *syncline::StartServer(server);
  for (uint32_t i = 0; i < options.servers; ++i) StartServer();
}

Cluster::~Cluster() {
  for (const auto& node : nodes_) node->Stop();
  service_->Stop();
  running_.Shutdown(absl::Seconds(1));
}

SessionOptions Cluster::Options(uint32_t rank, uint32_t world_size,
                                const std::string& job) const {
  SessionOptions options;
  options.coordinator = running_.address;
  options.job = job;
  options.rank = rank;
  options.world_size = world_size;
  options.training.optimizer = {.name = "sgd", .values = {{"lr", 0.5}}};
  options.settings.push_codec = "fp32";
  options.settings.publish_codec = "fp32";
  options.failure_timeout = options_.failure_timeout;
  options.start_timeout = kPatience;
  return options;
}

void Cluster::StartServer() {
  ServerNodeOptions options;
  options.coordinator = running_.address;
  options.name = absl::StrCat("server", nodes_.size());
  options.engines = 2;
  options.timeouts = Timeouts::Derive(options_.failure_timeout);
  absl::Notification attached;
  ServerNodeEvents events;
  // Later attachments must not use `attached`, which is gone by then.
  auto first = std::make_shared<std::atomic<bool>>(true);
  events.on_attached = [first, &attached](uint32_t) {
    if (first->exchange(false)) attached.Notify();
  };
  nodes_.push_back(*ServerNode::Start(options, std::move(events)));
  SYNCLINE_CHECK(attached.WaitForNotificationWithTimeout(kPatience));
}

absl::StatusOr<uint64_t> Cluster::Update(const std::string& job,
                                         const OptionValues& optimizer,
                                         const NamedOptions& mode) {
  SYNCLINE_ASSIGN_OR_RETURN(
      const auto channel,
      CreateChannel(running_.address, TlsOptions{}, RpcTimeouts::Default()));
  v1::UpdateJobRequest request;
  request.set_job(job);
  for (const auto& [name, value] : optimizer) {
    v1::Option& option = *request.add_optimizer();
    option.set_name(name);
    option.set_value(value);
  }
  if (!mode.name.empty()) {
    request.mutable_mode()->set_name(mode.name);
    for (const auto& [name, value] : mode.values) {
      v1::Option& option = *request.mutable_mode()->add_options();
      option.set_name(name);
      option.set_value(value);
    }
  }
  grpc::ClientContext context;
  SetDeadline(context, kPatience);
  v1::UpdateJobReply reply;
  const grpc::Status answered =
      v1::Coordinator::NewStub(channel)->UpdateJob(&context, request, &reply);
  SYNCLINE_RETURN_IF_ERROR(FromGrpcStatus(answered));
  return reply.epoch();
}

bool Cluster::Await(const std::function<bool(const CoordinatorView&)>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!condition(View())) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(kPause);
  }
  return true;
}

Until Steps(uint64_t steps) {
  return [steps](uint64_t step) { return step >= steps; };
}

Worker::Worker(const SessionOptions& options, const WorkerPlan& plan) {
  thread_ = std::thread([this, options, plan] {
    end_.status = Train(options, plan);
    const absl::MutexLock lock(&mutex_);
    ended_ = true;
  });
}

Worker::~Worker() { End(); }

const WorkerEnd& Worker::End() {
  if (thread_.joinable()) thread_.join();
  return end_;
}

bool Worker::AwaitSteps(uint64_t steps) {
  const absl::MutexLock lock(&mutex_);
  const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return ended_ || steps_ >= steps;
  };
  return mutex_.AwaitWithTimeout(absl::Condition(&done), kPatience);
}

absl::Status Worker::Train(const SessionOptions& options, const WorkerPlan& plan) {
  size_t elements = 1;
  for (const uint64_t side : plan.shape) elements *= side;
  const float pull =
      plan.gradient != 0 ? plan.gradient : static_cast<float>(options.rank + 1);
  std::vector<float> weights(elements, 0.0f);
  const std::vector<float> gradient(elements, pull);
  // The session is created last, so that it is destroyed before its memory.
  SYNCLINE_ASSIGN_OR_RETURN(const auto session, Session::Create(options));
  SYNCLINE_ASSIGN_OR_RETURN(
      const TensorId tensor,
      session->Declare({.name = "weight", .shape = plan.shape}, weights));
  SYNCLINE_RETURN_IF_ERROR(session->Start());
  end_.weight_after[session->step()] = weights[0];
  while (!plan.until(session->step())) {
    SYNCLINE_RETURN_IF_ERROR(session->PushPullAndWait(tensor, gradient, 1));
    end_.weight_after[session->step()] = weights[0];
    end_.uniform &= std::all_of(weights.begin(), weights.end(),
                                [&](float weight) { return weight == weights[0]; });
    end_.members = session->Stats().members;
    const absl::MutexLock lock(&mutex_);
    ++steps_;
  }
  // The coordinator's message may arrive after the steps that result from it.
  const absl::Time limit = absl::Now() + kPatience;
  while (plan.last_members != 0 && end_.members != plan.last_members &&
         absl::Now() < limit) {
    absl::SleepFor(absl::Milliseconds(1));
    end_.members = session->Stats().members;
  }
  return plan.vanish ? absl::OkStatus() : session->Leave();
}

}  // namespace syncline::cluster
