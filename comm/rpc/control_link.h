// A member's half of its link to the coordinator. A link outlives its streams: if a
// stream breaks or is silent, the member dials again, both sides report what they have
// received, and missing messages are sent again (docs/adr/0010-links-outlive-streams.md).
//
//   auto link = ControlLink::Open(
//       {.attach = {.address = "10.0.0.1:7070", .timeouts = timeouts}, .hello = hello,
//        .patience = absl::Minutes(10)},
//       {.on_message = [&](const v1::CoordinatorMessage& message) { ... },
//        .on_end = [&](const absl::Status& status) { ... }});
//   link->Send(message);     // arrives once and in order, or on_end says why not
//   link->Send(heartbeat);   // only the latest matters: never repeated
//   link->Close(grace);
//
// The address may name several coordinators, "h1:7070,h2:7070", one of which leads. After
// an attempt that fails, or that is refused by one that does not lead, the next is tried.
//
// Every heartbeat is answered. A coordinator that has answered none for
// ControlLinkOptions::outage is lost: Unavailable, Failure::kRetryable. Time in which
// this process did not run does not count. A coordinator that was restarted meanwhile
// does not know the link: it receives another hello (hello_again), and everything that is
// sent from then on. If the coordinator refuses or drops the member, the link ends at
// once with the coordinator's error.
//
// Threads: one dials and watches, one writes, and each stream has a reader.
//
// Thread safety: any thread may call Send, which never waits for the network. Callbacks
// run one at a time. on_end is the last one, and is called exactly once unless Close came
// first. Close and the destructor must not be called from a callback.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/base/clock_offset.h"
#include "comm/base/env.h"
#include "comm/base/log.h"
#include "comm/base/patient_clock.h"
#include "comm/base/steady_condition.h"
#include "comm/rpc/attach_stream.h"
#include "comm/rpc/diagnosis.h"
#include "comm/rpc/dialer.h"
#include "comm/rpc/reliable_queue.h"
#include "comm/rpc/unanswered_beats.h"

namespace syncline {

struct ControlLinkOptions {
  AttachOptions attach;
  v1::MemberMessage hello;  // the first message of the link
  // How long to try before the coordinator answers for the first time;
  // Failure::kUnreachable afterwards. An answer that no repetition can change (another
  // certificate authority, TLS on one side only) ends the attempts after some seconds.
  absl::Duration patience = absl::Seconds(10);
  // How long the coordinator may be away after that, if it announced that it comes back
  // (by a term). Otherwise, and at least, Timeouts::coordinator_silence.
  absl::Duration outage = {};
  // What the user can do if there is no coordinator; part of the error before it answers.
  std::string advice = {};
  // What continues while it is away, for the log: "training goes on".
  std::string meanwhile = {};
  // Returns the first message for a restarted coordinator, with everything that it must
  // know: it has forgotten what was sent before. Called without a lock on the dialling
  // thread. Null: a restarted coordinator ends the link.
  std::function<v1::MemberMessage()> hello_again = nullptr;
  Logger log = {};
};

class ControlLink {
 public:
  static std::unique_ptr<ControlLink> Open(ControlLinkOptions options,
                                           AttachCallbacks callbacks);
  ~ControlLink();  // closes

  // Returns false if the link has ended, for the reason given to on_end.
  bool Send(v1::MemberMessage message) ABSL_LOCKS_EXCLUDED(mutex_);

  // Closes the link. Waits up to `grace` until everything is sent and the coordinator has
  // ended the stream. A second call does nothing.
  void Close(absl::Duration grace = absl::ZeroDuration()) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns true if the coordinator has ever answered.
  bool was_attached() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return was_attached_;
  }

  // Returns the coordinator's present time (`offset`), estimated from its answers to
  // heartbeats.
  std::optional<ClockOffset::Reading> CoordinatorTime() const
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_.Now();
    auto reading = coordinator_clock_.At(now);
    if (reading) reading->offset += now;
    return reading;
  }

  // Returns the number of bytes that were sent and not acknowledged. Beyond a limit the
  // link ends.
  size_t UnacknowledgedBytes() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return queue_.bytes();
  }

  // Returns the error of a coordinator that never answered, with the cause.
  absl::Status Unreachable() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Serial = uint64_t;  // of a stream; 0 is none

  ControlLink(ControlLinkOptions options, AttachCallbacks callbacks);

  // Called on the thread that dials and watches.
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);
  bool WaitForOutage() ABSL_LOCKS_EXCLUDED(mutex_);
  void Dial() ABSL_LOCKS_EXCLUDED(mutex_);
  void AwaitAttached(absl::Duration until) ABSL_LOCKS_EXCLUDED(mutex_);
  void FreeStreams() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the address of the present attempt.
  const std::string& Target() const { return targets_[target_ % targets_.size()]; }
  bool IsHealthy() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration Silence() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WantsCause() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status UnreachableLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SayThatItIsAway(absl::Duration silence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsOutdated(Serial serial, const v1::CoordinatorMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginAnew() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndIfSilent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Found(const Diagnosis& diagnosis) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string WithAdvice(const std::string& cause) const;
  void SayThatItWaits() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::MemberMessage FirstMessage() ABSL_LOCKS_EXCLUDED(mutex_);

  // Called on the thread that writes.
  void Write() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasToWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::MemberMessage NextToWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Called on the readers' threads.
  void OnMessage(Serial serial, const v1::CoordinatorMessage& message)
      ABSL_LOCKS_EXCLUDED(mutex_, deliver_mutex_);
  bool Take(Serial serial, const v1::CoordinatorMessage& message)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Attached(const v1::CoordinatorMessage& ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnStreamEnd(Serial serial, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closing_ || ended_.has_value();
  }
  absl::Duration PatientNow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return patient_.Advance(clock_.Now());
  }

  const ControlLinkOptions options_;
  const AttachCallbacks callbacks_;
  const SteadyClock clock_;
  // Used by the watching thread only.
  Dialer dialer_;
  const std::vector<std::string> targets_;
  size_t target_ = 0;

  // Held while a message is counted and delivered, so that streams which take turns keep
  // the order. Taken before mutex_.
  absl::Mutex deliver_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);

  mutable absl::Mutex mutex_;
  SteadyCondition changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
  absl::Duration say_next_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_failure_ ABSL_GUARDED_BY(mutex_);  // of the last failed attempt
  std::string cause_ ABSL_GUARDED_BY(mutex_);          // why no attempt ever succeeded
  // For each target: since when its failures have had a lasting cause.
  std::vector<std::optional<absl::Duration>> lasts_since_ ABSL_GUARDED_BY(mutex_);
  bool was_attached_ ABSL_GUARDED_BY(mutex_) = false;
  // This is a secret: a process that knows it can speak for this member.
  std::string key_ ABSL_GUARDED_BY(mutex_);
  bool is_linked_ ABSL_GUARDED_BY(mutex_) = false;  // the coordinator knows the key
  uint64_t term_ ABSL_GUARDED_BY(mutex_) = 0;       // highest term received
  bool is_away_ ABSL_GUARDED_BY(mutex_) = false;    // it was logged that it is away

  // The link's present stream, and the one that is to replace it.
  std::shared_ptr<AttachStream> stream_ ABSL_GUARDED_BY(mutex_);
  Serial stream_serial_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stream_broke_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<AttachStream> candidate_ ABSL_GUARDED_BY(mutex_);
  Serial candidate_serial_ ABSL_GUARDED_BY(mutex_) = 0;
  bool candidate_broke_ ABSL_GUARDED_BY(mutex_) = false;
  // The candidate's coordinator restarted.
  bool begins_anew_ ABSL_GUARDED_BY(mutex_) = false;
  Serial last_serial_ ABSL_GUARDED_BY(mutex_) = 0;
  // Streams that were replaced; the watching thread ends them.
  std::vector<std::shared_ptr<AttachStream>> replaced_ ABSL_GUARDED_BY(mutex_);

  ReliableQueue<v1::MemberMessage> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;  // on the present stream
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  ReceivedNumbers received_ ABSL_GUARDED_BY(mutex_);
  uint64_t acknowledged_ ABSL_GUARDED_BY(mutex_) = 0;  // acknowledged by this side
  std::optional<v1::MemberMessage> beat_ ABSL_GUARDED_BY(mutex_);
  UnansweredBeats beats_ ABSL_GUARDED_BY(mutex_);  // in patient time
  ClockOffset coordinator_clock_ ABSL_GUARDED_BY(mutex_);
  PatientClock patient_ ABSL_GUARDED_BY(mutex_);

  std::thread writer_;
  std::thread watcher_;
};

}  // namespace syncline
