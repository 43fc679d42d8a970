// A member's half of its link to the coordinator. A link outlives its streams: when one
// breaks, or nothing is heard on it, the member dials again, both sides say what they have
// seen, and what is missing is said again (docs/adr/0010-links-outlive-streams.md).
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
// The address may be that of several coordinators, "h1:7070,h2:7070", of which one leads: an
// attempt that fails, or that one of the others refuses, is followed by one at the next.
//
// Every heartbeat is answered. A coordinator that answered none for
// ControlLinkOptions::outage, not counting times in which this process did not run, is
// lost: Unavailable, Failure::kRetryable. One that was started anew meanwhile knows no
// link; it gets another hello (hello_again), and everything that is sent from then on. A refusal or drop by the coordinator ends the
// link at once, with what the coordinator said.
//
// Threads: one that dials and watches, one that writes, and the reader of each stream.
// Send from any thread; it never waits for the network. Callbacks run one at a time;
// on_end is the last one, called exactly once unless Close came first. Close and the
// destructor must not be called from a callback.
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
  // How long the coordinator may be out of reach before it has answered for the first
  // time. Failure::kUnreachable afterwards, and some seconds after something answers that
  // no patience helps with: another certificate authority, TLS on one side only.
  absl::Duration patience = absl::Seconds(10);
  // The same once it has answered, if it said that it comes back (with a term); otherwise,
  // and at least, Timeouts::coordinator_silence.
  absl::Duration outage = {};
  // What to do where there is no coordinator, said with the reason until it has answered.
  std::string advice = {};
  // What goes on meanwhile, for the log: "training goes on".
  std::string meanwhile = {};
  // The first message of a new link, to a coordinator that was started anew: with all that
  // it has to know, since what was sent before is forgotten. Called without a lock, by the
  // thread that dials; null: such a coordinator ends the link.
  std::function<v1::MemberMessage()> hello_again = nullptr;
  Logger log = {};
};

class ControlLink {
 public:
  static std::unique_ptr<ControlLink> Open(ControlLinkOptions options,
                                           AttachCallbacks callbacks);
  ~ControlLink();  // closes

  // False when the link has ended; on_end says why.
  bool Send(v1::MemberMessage message) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits up to `grace` for what was sent to be on its way and for the coordinator to end
  // the stream. The second call does nothing.
  void Close(absl::Duration grace = absl::ZeroDuration()) ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether the coordinator has ever answered.
  bool was_attached() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return was_attached_;
  }

  // What the coordinator's clock shows now (`offset`), as its answers to heartbeats tell.
  std::optional<ClockOffset::Reading> CoordinatorTime() const
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_.Now();
    auto reading = coordinator_clock_.At(now);
    if (reading) reading->offset += now;
    return reading;
  }

  // What was sent and is not known to have arrived; beyond a limit the link ends.
  size_t UnacknowledgedBytes() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return queue_.bytes();
  }

  // That it never did, and why.
  absl::Status Unreachable() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Serial = uint64_t;  // of a stream; 0 is none

  ControlLink(ControlLinkOptions options, AttachCallbacks callbacks);

  // The thread that dials and watches.
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);
  bool WaitForOutage() ABSL_LOCKS_EXCLUDED(mutex_);
  void Dial() ABSL_LOCKS_EXCLUDED(mutex_);
  void AwaitAttached(absl::Duration until) ABSL_LOCKS_EXCLUDED(mutex_);
  void FreeStreams() ABSL_LOCKS_EXCLUDED(mutex_);
  // Of the watching thread: where the attempt under way goes.
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

  // The thread that writes.
  void Write() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasToWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::MemberMessage NextToWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The readers of streams.
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
  // Of the watching thread.
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
  absl::Status last_failure_ ABSL_GUARDED_BY(mutex_);  // of an attempt
  std::string cause_ ABSL_GUARDED_BY(mutex_);          // why nothing was ever reached
  // Of each target: since when its cause has been one that does not pass.
  std::vector<std::optional<absl::Duration>> lasts_since_ ABSL_GUARDED_BY(mutex_);
  bool was_attached_ ABSL_GUARDED_BY(mutex_) = false;
  // A secret: whoever knows it can speak for this member.
  std::string key_ ABSL_GUARDED_BY(mutex_);
  bool is_linked_ ABSL_GUARDED_BY(mutex_) = false;  // the coordinator knows the key
  uint64_t term_ ABSL_GUARDED_BY(mutex_) = 0;       // the highest that was heard
  bool is_away_ ABSL_GUARDED_BY(mutex_) = false;    // and it was said

  // The stream that both sides take for the link's, and the one that shall replace it.
  std::shared_ptr<AttachStream> stream_ ABSL_GUARDED_BY(mutex_);
  Serial stream_serial_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stream_broke_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<AttachStream> candidate_ ABSL_GUARDED_BY(mutex_);
  Serial candidate_serial_ ABSL_GUARDED_BY(mutex_) = 0;
  bool candidate_broke_ ABSL_GUARDED_BY(mutex_) = false;
  bool begins_anew_ ABSL_GUARDED_BY(mutex_) = false;  // where the candidate was
  Serial last_serial_ ABSL_GUARDED_BY(mutex_) = 0;
  // Were replaced; the watching thread ends them.
  std::vector<std::shared_ptr<AttachStream>> replaced_ ABSL_GUARDED_BY(mutex_);

  ReliableQueue<v1::MemberMessage> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;  // on the present stream
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  ReceivedNumbers received_ ABSL_GUARDED_BY(mutex_);
  uint64_t acknowledged_ ABSL_GUARDED_BY(mutex_) = 0;  // by us
  std::optional<v1::MemberMessage> beat_ ABSL_GUARDED_BY(mutex_);
  UnansweredBeats beats_ ABSL_GUARDED_BY(mutex_);  // in patient time
  ClockOffset coordinator_clock_ ABSL_GUARDED_BY(mutex_);
  PatientClock patient_ ABSL_GUARDED_BY(mutex_);

  std::thread writer_;
  std::thread watcher_;
};

}  // namespace syncline
