// Collects the outputs of one input, in the order in which the shell acts on them.
//
//   outbox.Send(connection, Waiting{"waiting for worker 2 of 4"});
//   outbox.Log("job 'a': waiting for worker 2 of 4");
//   return outbox.Take();
//
// The Coordinator owns one, and its jobs and declarations write to it. It is empty
// between inputs. Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/coordinator/coordinator.h"

namespace syncline {

class Outbox {
 public:
  void Send(ConnectionId connection, CoordinatorBody body) {
    Add(ToMember{connection, std::move(body)});
  }
  // Ends the member's stream with this status.
  void Close(ConnectionId connection, absl::Status status) {
    Add(CloseMember{connection, std::move(status)});
  }
  // Null: deletes the record.
  void Store(std::string key, std::shared_ptr<const std::string> value) {
    Add(StoreRecord{std::move(key), std::move(value)});
  }
  // Stores the state that belongs to no job. The Coordinator fills it in at the end of
  // the input.
  void Persist() { Add(PersistState{}); }
  void Log(std::string text, LogReason::Level level = LogReason::Level::kInfo) {
    Add(LogReason{std::move(text), level});
  }
  void Add(CoordinatorOutput output) { outputs_.push_back(std::move(output)); }
  template <typename Output>
  void AddAll(std::vector<Output> outputs) {
    std::ranges::move(outputs, std::back_inserter(outputs_));
  }

  const CoordinatorOutputs& outputs() const { return outputs_; }
  // Takes all outputs out.
  CoordinatorOutputs Take() { return std::exchange(outputs_, {}); }
  // Takes out those after the first `size`, so that others may precede them.
  CoordinatorOutputs TakeAfter(size_t size) {
    const auto from = outputs_.begin() + static_cast<ptrdiff_t>(size);
    CoordinatorOutputs taken(std::make_move_iterator(from),
                             std::make_move_iterator(outputs_.end()));
    outputs_.erase(from, outputs_.end());
    return taken;
  }

 private:
  CoordinatorOutputs outputs_;
};

}  // namespace syncline
