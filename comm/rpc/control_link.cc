#include "comm/rpc/control_link.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/diagnosis.h"

namespace syncline {
namespace {

constexpr size_t kKeyBytes = 16;
// Received messages are acknowledged with every heartbeat, and after this many messages.
constexpr uint64_t kAcknowledgeEvery = 64;
// A coordinator that starts only a moment later is not worth a log line.
constexpr absl::Duration kSayWaitingAfter = absl::Seconds(3);

std::string DrawKey() {
  std::random_device random;
  std::string key;
  while (key.size() < kKeyBytes) key.push_back(static_cast<char>(random() & 0xff));
  return key;
}

uint64_t DrawSeed() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

// Returns true for an error that ends a stream but not the link, because no coordinator
// decided it. An error with which the coordinator itself ends a member carries a Failure.
bool IsBreak(const absl::Status& status) {
  if (FailureOf(status) == Failure::kUnreachable) return true;
  if (FailureOf(status) != Failure::kNone) return false;
  return absl::IsUnavailable(status) || absl::IsInternal(status) ||
         absl::IsUnknown(status) || absl::IsCancelled(status) ||
         absl::IsDeadlineExceeded(status);  // the first message did not arrive in time
}

PatientClock::Options PatienceOf(const Timeouts& timeouts) {
  return {.planned = timeouts.heartbeat_interval,
          .longest_gap = 3 * timeouts.heartbeat_interval,  // an attempt may take F/4
          .settle = timeouts.heartbeat_interval};
}

}  // namespace

ControlLink::ControlLink(ControlLinkOptions options, AttachCallbacks callbacks)
    : options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      dialer_({.first = options_.attach.timeouts.dial_slot,
               .longest = options_.attach.timeouts.connect_timeout},
              DrawSeed()),
      targets_(absl::StrSplit(options_.attach.address, ',')),
      say_next_(kSayWaitingAfter),
      lasts_since_(targets_.size()),
      key_(DrawKey()),
      // Statistics of all blocks of a step come at once. The limit in bytes is
      // sufficient.
      queue_(ReliableQueueLimits{.messages = size_t{1} << 21}),
      patient_(PatienceOf(options_.attach.timeouts)) {}

std::unique_ptr<ControlLink> ControlLink::Open(ControlLinkOptions options,
                                               AttachCallbacks callbacks) {
  std::unique_ptr<ControlLink> link(
      new ControlLink(std::move(options), std::move(callbacks)));
  link->writer_ = std::thread([self = link.get()] { self->Write(); });
  link->watcher_ = std::thread([self = link.get()] { self->Watch(); });
  return link;
}

ControlLink::~ControlLink() { Close(); }

absl::Status ControlLink::Unreachable() const {
  absl::MutexLock lock(&mutex_);
  return UnreachableLocked();
}

absl::Status ControlLink::UnreachableLocked() const {
  return UnreachableError(
      options_.attach.address, options_.patience,
      WithAdvice(cause_.empty() ? "it accepts connections and does not answer" : cause_));
}

bool ControlLink::Send(v1::MemberMessage message) {
  absl::MutexLock lock(&mutex_);
  if (IsOver()) return false;
  if (message.has_heartbeat()) {
    beat_ = std::move(message);
    beat_->set_beat(beats_.Sent(PatientNow()));
    coordinator_clock_.Asked(beat_->beat(), clock_.Now());
    changed_.SignalAll();
    return true;
  }
  message.set_number(queue_.next());
  const size_t bytes = message.ByteSizeLong();
  const absl::Status kept =
      queue_.Push(std::make_shared<const v1::MemberMessage>(std::move(message)), bytes)
          .status();
  if (!kept.ok()) End(kept);
  changed_.SignalAll();
  return kept.ok();
}

void ControlLink::Close(absl::Duration grace) {
  if (!watcher_.joinable()) return;
  const absl::Duration deadline = clock_.Now() + grace;
  std::shared_ptr<AttachStream> last;
  std::shared_ptr<AttachStream> candidate;
  {
    absl::MutexLock lock(&mutex_);
    while (!IsOver() && stream_ != nullptr && !stream_broke_ &&
           (is_writing_ || written_ < queue_.last()) &&
           changed_.WaitUntil(mutex_, clock_, deadline)) {
    }
    closing_ = true;
    changed_.SignalAll();
    last = stream_;
    candidate = candidate_;
  }
  if (candidate != nullptr) candidate->Cancel();
  const absl::Duration left = std::max(deadline - clock_.Now(), absl::ZeroDuration());
  if (last != nullptr && left <= absl::ZeroDuration()) last->Cancel();
  if (last != nullptr) last->Close(left);
  writer_.join();
  watcher_.join();
}

void ControlLink::End(const absl::Status& status) {
  if (IsOver()) return;
  ended_ = status;
  changed_.SignalAll();
}

// ---- Dialling and watching ----

void ControlLink::Watch() {
  while (WaitForOutage()) Dial();
  std::optional<absl::Status> ended;
  {
    absl::MutexLock lock(&mutex_);
    if (candidate_ != nullptr) replaced_.push_back(std::move(candidate_));
    if (!closing_) {
      if (stream_ != nullptr) replaced_.push_back(std::move(stream_));
      ended = ended_;
    }
    changed_.SignalAll();
  }
  FreeStreams();
  if (!ended) return;
  absl::MutexLock deliver(&deliver_mutex_);
  callbacks_.on_end(*ended);
}

bool ControlLink::IsHealthy() {
  return stream_ != nullptr && !stream_broke_ &&
         Silence() < options_.attach.timeouts.redial_after;
}

// Returns how long the coordinator has not answered a heartbeat. Without heartbeats there
// are no answers to expect.
absl::Duration ControlLink::Silence() {
  const absl::Duration now = PatientNow();
  if (!was_attached_) return now;
  return beats_.Silence(now);
}

void ControlLink::EndIfSilent() {
  const absl::Duration silence = Silence();
  const std::string& address = options_.attach.address;
  const absl::Duration lost = options_.attach.timeouts.coordinator_silence;
  const bool comes_back = term_ > 0;
  const absl::Duration limit = comes_back ? std::max(lost, options_.outage) : lost;
  if (was_attached_ && silence >= lost && lost < limit) SayThatItIsAway(silence);
  if (was_attached_ && silence >= limit) {
    End(WithFailure(absl::UnavailableError(absl::StrCat(
                        "lost the coordinator at ", address, ": no answer for ",
                        absl::FormatDuration(absl::Trunc(silence, absl::Milliseconds(1))),
                        last_failure_.ok() ? "" : " (",
                        last_failure_.ok() ? "" : std::string(last_failure_.message()),
                        last_failure_.ok() ? "" : ")")),
                    Failure::kRetryable));
  }
  if (!was_attached_ && silence >= options_.patience) End(UnreachableLocked());
}

// Logs once for each outage.
void ControlLink::SayThatItIsAway(absl::Duration silence) {
  if (std::exchange(is_away_, true)) return;
  options_.log.Warning(
      absl::StrCat("the coordinator at ", options_.attach.address,
                   " is away; waiting for it for ", absl::FormatDuration(options_.outage),
                   options_.meanwhile.empty() ? "" : ", ", options_.meanwhile),
      {{"silent", absl::FormatDuration(absl::Trunc(silence, absl::Milliseconds(1)))}});
}

// Waits until the stream is unhealthy. Returns false if the link is over.
bool ControlLink::WaitForOutage() {
  FreeStreams();
  const absl::Duration step = options_.attach.timeouts.heartbeat_interval / 2;
  absl::MutexLock lock(&mutex_);
  while (!IsOver() && IsHealthy()) {
    changed_.WaitFor(mutex_, step);
    if (!replaced_.empty()) break;
  }
  EndIfSilent();
  return !IsOver();
}

void ControlLink::FreeStreams() {
  std::vector<std::shared_ptr<AttachStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams.swap(replaced_);
  }
  for (const auto& stream : streams) stream->Cancel();
}

v1::MemberMessage ControlLink::FirstMessage() {
  bool says_more = false;
  {
    absl::MutexLock lock(&mutex_);
    says_more = was_attached_ && !is_linked_;
  }
  v1::MemberMessage message = says_more ? options_.hello_again() : options_.hello;
  absl::MutexLock lock(&mutex_);
  if (is_linked_) {
    message.Clear();
    message.mutable_resume();
    message.set_seen(received_.last());
  }
  message.set_term(term_);
  message.set_link_key(key_);
  message.set_beat(candidate_serial_);
  return message;
}

// Makes one attempt to connect. It takes its whole slot unless it succeeds.
void ControlLink::Dial() {
  Serial serial = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (IsHealthy()) return;
    serial = ++last_serial_;
    candidate_serial_ = serial;
    candidate_broke_ = false;
  }
  const absl::Duration slot = dialer_.NextSlot();
  const absl::Duration slot_end = clock_.Now() + slot;
  AttachOptions attach = options_.attach;
  attach.address = Target();
  attach.connect_timeout = slot;
  AttachCallbacks callbacks;
  callbacks.on_message = [this, serial](const v1::CoordinatorMessage& message) {
    OnMessage(serial, message);
  };
  callbacks.on_end = [this, serial](const absl::Status& status) {
    OnStreamEnd(serial, status);
  };
  auto opened = AttachStream::Open(attach, std::move(callbacks));
  if (!opened.ok()) {
    std::optional<Diagnosis> found;
    if (WantsCause()) found = DiagnoseConnection(attach.address, attach.tls, slot);
    absl::MutexLock lock(&mutex_);
    last_failure_ = opened.status();
    if (found && !was_attached_) Found(*found);
    SayThatItWaits();
    if (!IsBreak(opened.status())) End(opened.status());
    while (!IsOver() && changed_.WaitUntil(mutex_, clock_, slot_end)) {
    }
    ++target_;
    return;
  }
  std::shared_ptr<AttachStream> stream = *std::move(opened);
  {
    absl::MutexLock lock(&mutex_);
    if (IsOver()) return;
    candidate_ = stream;
    lasts_since_[target_ % targets_.size()].reset();  // it accepts connections
  }
  stream->Send(FirstMessage());
  // The coordinator is there; a slow answer is no reason for a new attempt.
  AwaitAttached(clock_.Now() + options_.attach.timeouts.connect_timeout);
}

void ControlLink::AwaitAttached(absl::Duration until) {
  absl::MutexLock lock(&mutex_);
  const auto is_waiting = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !IsOver() && candidate_ != nullptr && !candidate_broke_;
  };
  while (is_waiting()) {
    EndIfSilent();
    if (IsOver() || !changed_.WaitUntil(mutex_, clock_, until)) break;
  }
  const absl::Duration pause = clock_.Now() + options_.attach.timeouts.dial_slot;
  if (candidate_ == nullptr) {
    dialer_.Reset();
    // If a stream breaks right after it was accepted, the next attempt must not follow at
    // once.
    while (stream_broke_ && !IsOver() && changed_.WaitUntil(mutex_, clock_, pause)) {
    }
    return;
  }
  const bool broke = candidate_broke_;
  if (!std::exchange(begins_anew_, false)) ++target_;
  SayThatItWaits();
  candidate_serial_ = 0;
  replaced_.push_back(std::move(candidate_));
  // If the attempt was refused at once, the next one must not follow at once.
  while (broke && !IsOver() && changed_.WaitUntil(mutex_, clock_, pause)) {
  }
}

// ---- Writing ----

bool ControlLink::HasToWrite() const {
  return written_ < queue_.last() || beat_.has_value() ||
         received_.last() >= acknowledged_ + kAcknowledgeEvery;
}

v1::MemberMessage ControlLink::NextToWrite() {
  v1::MemberMessage message;
  if (beat_) {
    message = *std::exchange(beat_, std::nullopt);
  } else if (const auto next = queue_.Find(written_ + 1)) {
    message = *next;
    ++written_;
  }  // otherwise only an acknowledgement
  message.set_seen(received_.last());
  acknowledged_ = received_.last();
  return message;
}

void ControlLink::Write() {
  for (;;) {
    std::shared_ptr<AttachStream> stream;
    v1::MemberMessage message;
    {
      absl::MutexLock lock(&mutex_);
      while (!IsOver() && (stream_ == nullptr || stream_broke_ || !HasToWrite())) {
        changed_.Wait(mutex_);
      }
      if (IsOver()) return;
      stream = stream_;
      message = NextToWrite();
      is_writing_ = true;
    }
    const bool sent = stream->Send(message);
    absl::MutexLock lock(&mutex_);
    is_writing_ = false;
    if (!sent && stream == stream_) stream_broke_ = true;
    changed_.SignalAll();
  }
}

// ---- Reading ----

void ControlLink::OnMessage(Serial serial, const v1::CoordinatorMessage& message) {
  absl::MutexLock deliver(&deliver_mutex_);
  if (Take(serial, message)) callbacks_.on_message(message);
}

// Returns true for a message that the owner has not received yet.
bool ControlLink::Take(Serial serial, const v1::CoordinatorMessage& message) {
  absl::MutexLock lock(&mutex_);
  if (IsOver() || IsOutdated(serial, message)) return false;
  if (serial == candidate_serial_ && message.has_link_unknown()) BeginAnew();
  if (serial == candidate_serial_ && message.has_link_ready()) {
    Attached(message);
    return false;
  }
  if (serial != stream_serial_) return false;
  queue_.Acknowledge(message.seen());
  written_ = std::max(written_, queue_.acknowledged());
  beats_.Answered(message.beat());
  coordinator_clock_.Answered(message.beat(), absl::Nanoseconds(message.time_ns()),
                              clock_.Now());
  if (message.body_case() == v1::CoordinatorMessage::BODY_NOT_SET) return false;
  if (message.number() == 0) return true;
  const ReceivedNumbers::Verdict verdict = received_.Take(message.number());
  if (verdict == ReceivedNumbers::Verdict::kGap) {
    End(absl::InternalError(absl::StrCat("the coordinator at ", options_.attach.address,
                                         " sent message ", message.number(),
                                         " after message ", received_.last())));
  }
  if (received_.last() >= acknowledged_ + kAcknowledgeEvery) changed_.SignalAll();
  return verdict == ReceivedNumbers::Verdict::kNew;
}

// Returns true if an outdated coordinator sent this on a stream that still counts.
bool ControlLink::IsOutdated(Serial serial, const v1::CoordinatorMessage& message) {
  const bool is_candidate = serial == candidate_serial_;
  if (!is_candidate && serial != stream_serial_) return false;
  if (message.term() >= term_) {
    term_ = message.term();
    return false;
  }
  last_failure_ = absl::UnavailableError(
      absl::StrCat("the coordinator at ", options_.attach.address, " has term ",
                   message.term(), ", but term ", term_,
                   " was seen before: it is an old coordinator, or lost its state"));
  if (is_candidate) candidate_broke_ = true;
  if (!is_candidate) stream_broke_ = true;
  changed_.SignalAll();
  return true;
}

// The coordinator has forgotten the link: starts a new one, whose hello contains
// everything.
void ControlLink::BeginAnew() {
  if (options_.hello_again == nullptr) {
    return End(WithFailure(absl::UnavailableError(absl::StrCat(
                               "the coordinator at ", options_.attach.address,
                               " was restarted, and does not know this "
                               "session")),
                           Failure::kRetryable));
  }
  if (stream_ != nullptr) replaced_.push_back(std::move(stream_));
  stream_ = nullptr;
  stream_serial_ = 0;
  key_ = DrawKey();
  is_linked_ = false;
  queue_.Clear();
  received_ = {};
  coordinator_clock_ = {};
  written_ = 0;
  acknowledged_ = 0;
  candidate_broke_ = true;  // so that this attempt ends
  begins_anew_ = true;
  changed_.SignalAll();
}

// Makes the candidate the link's stream. It continues after the last message that the
// coordinator has received.
void ControlLink::Attached(const v1::CoordinatorMessage& ready) {
  if (!queue_.CanReplayAfter(ready.seen())) {
    return End(absl::InternalError(absl::StrCat(
        "the coordinator at ", options_.attach.address,
        " asks to continue after message ", ready.seen(), ", which was never sent")));
  }
  queue_.Acknowledge(ready.seen());
  written_ = ready.seen();
  if (stream_ != nullptr) replaced_.push_back(std::move(stream_));
  stream_ = std::move(candidate_);
  candidate_ = nullptr;
  stream_serial_ = std::exchange(candidate_serial_, 0);
  stream_broke_ = false;
  // Answers to heartbeats of the old stream will not come any more.
  beats_.Restart(PatientNow());
  if (was_attached_) {
    options_.log.Info("attached to the coordinator again",
                      {{"coordinator", options_.attach.address}});
  }
  was_attached_ = true;
  is_linked_ = true;
  is_away_ = false;
  last_failure_ = absl::OkStatus();
  changed_.SignalAll();
}

void ControlLink::OnStreamEnd(Serial serial, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  const bool is_candidate = serial == candidate_serial_;
  if (!is_candidate && serial != stream_serial_) return;  // it was replaced
  if (is_candidate && candidate_broke_) return;           // it was given up
  if (!IsBreak(status)) return End(status);
  last_failure_ = status;
  if (is_candidate) candidate_broke_ = true;
  if (is_candidate && !was_attached_) cause_ = std::string(status.message());
  if (!is_candidate) stream_broke_ = true;
  changed_.SignalAll();
}

}  // namespace syncline
