#include "comm/collective/nccl/nccl_group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "comm/collective/nccl/nccl_card.h"

namespace syncline::collective {
namespace {

// Everything that a rank can find out by itself.
struct Preparation {
  NcclLibrary nccl;
  std::unique_ptr<Gpu> gpu;
  std::unique_ptr<NcclCommunicator> communicator;
};

absl::StatusOr<Preparation> Prepare(const NcclGroupOptions& options, NcclCard& card) {
  Preparation own;
  if (!options.why_not.empty()) return absl::UnimplementedError(options.why_not);
  if (options.group.exact_order) {
    return absl::UnimplementedError("NCCL has no exact order of ranks");
  }
  SYNCLINE_ASSIGN_OR_RETURN(own.nccl, NcclLibrary::Open(options.library));
  SYNCLINE_ASSIGN_OR_RETURN(own.gpu, Gpu::Open(options.driver, options.device));
  const Gpu::Current current(*own.gpu);
  const NcclRank place = {.rank = options.group.rank, .ranks = options.group.ranks};
  SYNCLINE_ASSIGN_OR_RETURN(own.communicator,
                            NcclCommunicator::Make(own.nccl, place, *own.gpu));
  card.version = own.nccl.version;
  card.gpu = own.gpu->uuid();
  if (place.rank == 0) {
    if (const int error = own.nccl.get_unique_id(&card.id); error != kNcclSuccess) {
      return absl::UnavailableError(
          absl::StrCat("NCCL finds no network: ", own.nccl.get_error_string(error)));
    }
  }
  return own;
}

// Returns the values `own` of all ranks.
template <typename T>
absl::StatusOr<std::vector<T>> Exchange(Group& group, const T& own,
                                        absl::Duration timeout) {
  std::vector<T> all(static_cast<size_t>(group.ranks()));
  SYNCLINE_RETURN_IF_ERROR(group.Run({.op = CollectiveOp::kAllGather,
                                      .type = ElementType::kU8,
                                      .input = &own,
                                      .output = all.data(),
                                      .count = sizeof own,
                                      .label = "meeting over NCCL",
                                      .timeout = timeout}));
  return all;
}

}  // namespace

NcclGroup::NcclGroup(const NcclGroupOptions& options, std::unique_ptr<Gpu> gpu,
                     std::unique_ptr<NcclCommunicator> communicator,
                     std::unique_ptr<Group> watch)
    : options_(options),
      place_({.rank = options.group.rank, .ranks = options.group.ranks}),
      gpu_(std::move(gpu)),
      communicator_(std::move(communicator)),
      watch_(std::move(watch)),
      records_(static_cast<size_t>(options.group.ranks)),
      roll_call_(options.group.rank) {}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Create(
    const NcclGroupOptions& options, Group& group) {
  const absl::Duration patience = options.group.start_timeout;
  NcclCard card;
  absl::StatusOr<Preparation> own = Prepare(options, card);
  if (!own.ok()) SayWhyNot(own.status().message(), card);
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<NcclCard> cards,
                            Exchange(group, card, patience));
  const std::string why_not = WhyNoGroup(cards);
  if (!why_not.empty()) return absl::UnimplementedError(why_not);
  GroupOptions watch_options = options.group;
  // The timeout is shorter, so that a stopped rank is detected, and its operations are
  // aborted, within the group's own timeout.
  watch_options.failure_timeout =
      std::max(options.group.failure_timeout * 3 / 4, absl::Milliseconds(100));
  SYNCLINE_ASSIGN_OR_RETURN(auto watch, Group::Create(watch_options));
  std::unique_ptr<NcclGroup> made(new NcclGroup(
      options, std::move(own->gpu), std::move(own->communicator), std::move(watch)));
  made->thread_ = std::thread([&self = *made, id = cards.front().id] { self.Work(id); });
  const absl::Status formed = made->AwaitFormed();
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<uint8_t> all,
                            Exchange(group, static_cast<uint8_t>(formed.ok()), patience));
  if (const auto bad = std::find(all.begin(), all.end(), 0); bad != all.end()) {
    return absl::UnimplementedError(
        !formed.ok() ? std::string(formed.message())
                     : absl::StrCat("NCCL does not start on rank ", bad - all.begin()));
  }
  return made;
}

NcclGroup::~NcclGroup() {
  if (!thread_.joinable()) return;
  Leave();
  thread_.join();
}

void NcclGroup::Leave() {
  absl::MutexLock lock(&mutex_);
  leaving_ = true;
  leave_by_ = clock_.Now() + options_.group.failure_timeout / 8;
  changed_.SignalAll();
  while (!ended_) changed_.Wait(mutex_);
}

absl::Status NcclGroup::AwaitFormed() {
  absl::MutexLock lock(&mutex_);
  while (!formed_ && !ended_) changed_.Wait(mutex_);
  return failure_;
}

absl::StatusOr<NcclGroup::Handle> NcclGroup::Start(Call call, void* stream) {
  SYNCLINE_RETURN_IF_ERROR(CheckNcclCall(call, place_));
  const Gpu::Current current(*gpu_);
  auto pending = std::make_shared<PendingNcclCall>();
  pending->deadline =
      clock_.Now() +
      (call.timeout > absl::ZeroDuration() ? call.timeout : options_.group.timeout);
  pending->header = {.count = call.send_counts.empty() ? call.count : 0,
                     .root = static_cast<uint32_t>(call.root),
                     .source = static_cast<uint32_t>(call.source),
                     .tag = call.tag,
                     .op = static_cast<uint8_t>(call.op),
                     .type = static_cast<uint8_t>(call.type),
                     .reduce = static_cast<uint8_t>(call.reduce),
                     .algorithm = kNcclAlgorithm};
  std::copy(call.label.begin(), call.label.end(), pending->header.label.begin());
  if (call.op == CollectiveOp::kBarrier) call.output = communicator_->barrier_byte();
  pending->call = std::move(call);
  SYNCLINE_ASSIGN_OR_RETURN(pending->behind, gpu_->MakeEvent());
  SYNCLINE_RETURN_IF_ERROR(pending->behind.Record(stream));
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  if (pending->call.op != CollectiveOp::kSendReceive) roll_call_.Note(pending->header);
  incoming_.push_back(pending);
  changed_.SignalAll();
  return pending;
}

absl::Status NcclGroup::Wait(const Handle& handle, absl::Duration timeout) {
  const absl::Duration deadline = clock_.Now() + timeout;
  absl::MutexLock lock(&mutex_);
  while (!handle->done) {
    if (!changed_.WaitUntil(mutex_, clock_, deadline)) {
      return absl::DeadlineExceededError("the operation is still running");
    }
  }
  return handle->status;
}

void NcclGroup::Abort() {
  absl::MutexLock lock(&mutex_);
  aborted_ = true;
  changed_.SignalAll();
  while (!ended_) changed_.Wait(mutex_);
}

absl::Status NcclGroup::status() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

}  // namespace syncline::collective
