#include "server/service/preparer.h"

#include <cstddef>
#include <utility>
#include <variant>

#include "server/service/job_convert.h"

namespace syncline {
namespace {

constexpr size_t kSmallBytes = size_t{1} << 20;

size_t BytesOf(const ReadDeclaration& order) { return order.announced.bytes->size(); }
size_t BytesOf(const CompareJobs& order) {
  return order.ours->bytes() + order.theirs->bytes();
}
size_t BytesOf(const PlaceBlocksOf& order) { return order.job->bytes(); }

}  // namespace

Preparer::Preparer(std::function<void(Prepared)> done)
    : done_(std::move(done)), thread_([this] { Run(); }) {}

Preparer::~Preparer() { Stop(); }

void Preparer::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Preparer::Order(Preparation order) {
  const size_t bytes = std::visit([](const auto& what) { return BytesOf(what); }, order);
  absl::MutexLock lock(&mutex_);
  (bytes <= kSmallBytes ? small_ : large_).push_back(std::move(order));
}

Preparation Preparer::Next() {
  const bool takes_small = !small_.empty() && (small_is_next_ || large_.empty());
  std::deque<Preparation>& lane = takes_small ? small_ : large_;
  small_is_next_ = !takes_small;
  Preparation next = std::move(lane.front());
  lane.pop_front();
  return next;
}

void Preparer::Run() {
  const DeclarationReader reader = WireDeclarations();
  const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !small_.empty() || !large_.empty();
  };
  for (;;) {
    Preparation order;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (stopping_) return;
      order = Next();
    }
    done_(CarryOut(order, reader));
  }
}

}  // namespace syncline
