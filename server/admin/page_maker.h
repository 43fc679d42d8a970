// Makes pages on its own thread, one at a time.
//
//   PageMaker maker([&] { /* wake the loop */ });
//   maker.Begin(page.make);
//   ...
//   if (auto reply = maker.TakeReply(); reply.has_value()) ...
//
// Thread safety: one thread must call Begin and TakeReply.
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
  // `on_made` is called on the maker's thread.
  explicit PageMaker(std::function<void()> on_made);
  ~PageMaker();  // waits for the page that is being made
  PageMaker(const PageMaker&) = delete;
  PageMaker& operator=(const PageMaker&) = delete;

  // Begins a page. REQUIRES: the reply of the previous page was taken. `make` must
  // outlive the maker.
  void Begin(const std::function<HttpReply()>& make) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the page once it is made, and only once.
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
