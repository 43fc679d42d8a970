#include "cli/top.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/flags.h"
#include "cli/job_choice.h"
#include "cli/local_runs.h"
#include "cli/top_view.h"
#include "comm/base/env.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/base/unique_fd.h"
#include "comm/rpc/status_json.h"

namespace syncline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(3);

struct TopFlags {
  std::string job;
  std::string coordinator;
  std::string interval = "1s";
  TlsOptions tls;
};

// ---- The terminal ----

// Takes over signals that this program reads, so that they no longer end it. Call this
// before any thread starts, including gRPC's: the kernel delivers a signal to any thread
// that does not block it.
UniqueFd TakeSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int one : {SIGTERM, SIGHUP, SIGINT, SIGWINCH}) sigaddset(&signals, one);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return UniqueFd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

// Switches the terminal to full-screen mode and back. Ctrl-C and Ctrl-Z arrive as keys,
// SIGTERM and SIGHUP through `signals`.
class Terminal {
 public:
  static absl::StatusOr<std::unique_ptr<Terminal>> Open(UniqueFd signals) {
    if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0) {
      return WithFailure(
          absl::InvalidArgumentError("syncline top needs a terminal; for scripts and "
                                     "logs there is syncline status, also with --json"),
          Failure::kUsage);
    }
    termios settings = {};
    if (!signals.valid() || tcgetattr(STDIN_FILENO, &settings) != 0) {
      return absl::InternalError("cannot read the terminal's settings");
    }
    return std::unique_ptr<Terminal>(new Terminal(settings, std::move(signals)));
  }

  ~Terminal() {
    Write("\x1b[?25h\x1b[?1049l");
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  TopSize Size() const {
    winsize size = {};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return {};
    return {.columns = size.ws_col, .rows = size.ws_row};
  }

  void Show(const std::vector<TopLine>& lines) const {
    std::string screen = "\x1b[H";
    for (size_t i = 0; i < lines.size(); ++i) {
      absl::StrAppend(&screen, i > 0 ? "\r\n" : "", Colour(lines[i].tone), lines[i].text,
                      "\x1b[0m\x1b[K");
    }
    Write(screen + "\x1b[J");
  }

  struct Event {
    enum class Kind { kNone, kKeys, kResized, kStop } kind = Kind::kNone;
    std::string keys = {};
    int signal = 0;
  };
  // Waits for a key or a signal, for at most `timeout`.
  Event Wait(absl::Duration timeout) const {
    std::array<pollfd, 2> wait = {pollfd{STDIN_FILENO, POLLIN, 0},
                                  pollfd{signals_.get(), POLLIN, 0}};
    const auto milliseconds = absl::ToInt64Milliseconds(
        std::max(timeout, absl::ZeroDuration()) + absl::Milliseconds(1));
    if (poll(wait.data(), wait.size(), static_cast<int>(milliseconds)) <= 0) return {};
    signalfd_siginfo signal = {};
    if (read(signals_.get(), &signal, sizeof(signal)) == sizeof(signal)) {
      const auto number = static_cast<int>(signal.ssi_signo);
      if (number == SIGWINCH) return {.kind = Event::Kind::kResized};
      return {.kind = Event::Kind::kStop, .signal = number};
    }
    std::array<char, 64> keys = {};
    const ssize_t count = read(STDIN_FILENO, keys.data(), keys.size());
    // The terminal was closed.
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) {
      return {.kind = Event::Kind::kStop, .signal = SIGHUP};
    }
    return {.kind = Event::Kind::kKeys,
            .keys = std::string(keys.data(),
                                static_cast<size_t>(std::max<ssize_t>(0, count)))};
  }

 private:
  Terminal(const termios& before, UniqueFd signals)
      : before_(before), signals_(std::move(signals)) {
    termios raw = before;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
    Write("\x1b[?1049h\x1b[?25l\x1b[2J");
  }

  static const char* Colour(TopLine::Tone tone) {
    switch (tone) {
      case TopLine::Tone::kTitle:
        return "\x1b[2m";
      case TopLine::Tone::kHeader:
        return "\x1b[7m";
      case TopLine::Tone::kSelected:
        return "\x1b[1m";
      case TopLine::Tone::kWarning:
        return "\x1b[33m";
      case TopLine::Tone::kPlain:
        break;
    }
    return "";
  }

  static void Write(const std::string& bytes) { std::cout << bytes << std::flush; }

  const termios before_;
  const UniqueFd signals_;
};

// Asks the locale whether the terminal shows UTF-8. The variables are in the order that
// POSIX defines.
TopOptions::Glyphs GlyphsOfLocale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string locale = absl::AsciiStrToLower(value);
    return absl::StrContains(locale, "utf") ? TopOptions::Glyphs::kBlocks
                                            : TopOptions::Glyphs::kAscii;
  }
  return TopOptions::Glyphs::kAscii;
}

// ---- The loop ----

constexpr std::string_view kCtrlC = "\x03";

bool Quits(const std::string& keys) {
  return keys.find_first_of("qQ") != std::string::npos ||
         keys.find(kCtrlC) != std::string::npos || keys == "\x1b";
}

void Press(const std::string& keys, TopView& view) {
  if (keys == "\x1b[A" || keys == "\x1b[Z") return view.Press(TopKey::kPreviousJob);
  if (keys == "\x1b[B") return view.Press(TopKey::kNextJob);
  for (const char key : keys) {
    if (key == '\t' || key == 'j') view.Press(TopKey::kNextJob);
    if (key == 'k') view.Press(TopKey::kPreviousJob);
    if (key == 's') view.Press(TopKey::kNextOrder);
    if (key == 'p') view.Press(TopKey::kPhases);
    if (key == 'e') view.Press(TopKey::kEvents);
  }
}

absl::StatusOr<int> ShowTop(const TopFlags& flags) {
  SYNCLINE_ASSIGN_OR_RETURN(const absl::Duration interval,
                            ParseDurationFlag("--interval", flags.interval));
  if (interval < absl::Milliseconds(100) || interval > absl::Hours(1)) {
    return WithFailure(
        absl::InvalidArgumentError(absl::StrCat("--interval is ", flags.interval,
                                                ", but must be in [100ms, 1h]")),
        Failure::kUsage);
  }
  UniqueFd signals = TakeSignals();
  // Fetched before the screen changes, so that an error at the start is printed as usual.
  SYNCLINE_ASSIGN_OR_RETURN(const std::string first,
                            FetchStatusJson(flags.coordinator, flags.tls, kTimeout));
  const SteadyClock clock;
  const std::vector<std::string> starting = JobsStartedWith(flags.coordinator);
  TopView view({.coordinator = flags.coordinator,
                .glyphs = GlyphsOfLocale(),
                .starting = starting});
  SYNCLINE_RETURN_IF_ERROR(view.Add(first, clock.Now()));
  if (!flags.job.empty()) {
    SYNCLINE_RETURN_IF_ERROR(StatusOfJob(first, flags.job, starting).status());
    SYNCLINE_RETURN_IF_ERROR(view.Choose(flags.job));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const std::unique_ptr<Terminal> terminal,
                            Terminal::Open(std::move(signals)));
  absl::Duration next = clock.Now() + interval;
  for (;;) {
    terminal->Show(view.Draw(terminal->Size()));
    const Terminal::Event event = terminal->Wait(next - clock.Now());
    if (event.kind == Terminal::Event::Kind::kStop) return 128 + event.signal;
    if (event.kind == Terminal::Event::Kind::kKeys) {
      if (Quits(event.keys)) return kExitDone;
      Press(event.keys, view);
    }
    if (clock.Now() < next) continue;
    const auto status = FetchStatusJson(flags.coordinator, flags.tls, kTimeout);
    const absl::Duration now = clock.Now();
    const absl::Status added = status.ok() ? view.Add(*status, now) : status.status();
    if (!added.ok()) view.Fail(added, now);
    next = now + interval;
  }
}

}  // namespace

void AddTop(CLI::App& app, Command* selected) {
  auto flags = std::make_shared<TopFlags>();
  CLI::App* top = app.add_subcommand(
      "top", "Watch servers, jobs and members in a terminal: speed, stragglers, loss");
  top->add_option(
      "job", flags->job,
      "Job to show first; if this host has several runs, ask the run of this job");
  AddCoordinatorFlag(*top, &flags->coordinator);
  top->add_option("--interval", flags->interval, "Time between updates")
      ->capture_default_str();
  AddTlsFlags(*top, &flags->tls);
  top->callback([=] { *selected = [flags] { return Asking(*flags, ShowTop); }; });
}

}  // namespace syncline
