// Makes pages on a thread of its own, one at a time.
//
//   PageMaker maker([&] { wake the loop });
//   maker.Begin(page.make);
//   ...
//   if (auto reply = maker.TakeReply(); reply.has_value()) ...
//
// Thread safety: Begin and TakeReply from one thread.
#pragma once

#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/admin/http_reply.h"

namespace syncline {

class PageMaker {
 public:
  // `on_made` is called from the maker's thread.
  explicit PageMaker(std::function<void()> on_made);
  ~PageMaker();  // waits for the page that is being made
  PageMaker(const PageMaker&) = delete;
  PageMaker& operator=(const PageMaker&) = delete;

  // REQUIRES: the reply of the page before was taken. `make` outlives the maker.
  void Begin(const std::function<HttpReply()>& make) ABSL_LOCKS_EXCLUDED(mutex_);

  // The page that was begun, once, as soon as it is made.
  std::optional<HttpReply> TakeReply() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::function<void()> on_made_;
  absl::Mutex mutex_;
  const std::function<HttpReply()>* order_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::optional<HttpReply> reply_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncline
