#include "cli/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/shown_command.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

// Enough for a Python traceback.
constexpr size_t kTailLines = 20;
// A stream without line ends (a progress bar of \r) is cut here.
constexpr size_t kMaxLineBytes = 64 << 10;
// Maximum number of reads of one stream, 16 KiB each, before other streams and signals
// have their turn. Together they are as much as a large pipe holds.
constexpr int kReadsAtOnce = 64;
// Children are checked at least this often. A thread that existed before the group does
// not block SIGCHLD, and may consume it.
constexpr absl::Duration kLookAnyway = absl::Milliseconds(250);
// Maximum number of process groups that the guard knows at a time.
constexpr size_t kMaxGroups = 65536;
// After Ctrl-C, the launcher waits only this long for a reader that has stopped reading.
constexpr int kShowAfterSignalMs = 200;

sigset_t LauncherSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

absl::Status SystemError(std::string_view what) {
  return absl::InternalError(absl::StrCat(std::string(what), ": ", std::strerror(errno)));
}

absl::Status MakePipe(UniqueFd* read_end, UniqueFd* write_end) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return SystemError("cannot make a pipe");
  *read_end = UniqueFd(fds[0]);
  *write_end = UniqueFd(fds[1]);
  return absl::OkStatus();
}

void WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // a closed terminal or a full disk must not stop the job
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

// Returns the environment of a child: the launcher's, with `changes` applied.
std::vector<std::string> MergeEnvironment(
    const std::vector<std::pair<std::string, std::string>>& changes) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals != text.npos)
      merged[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : changes) merged[name] = value;
  std::vector<std::string> result;
  for (const auto& [name, value] : merged)
    result.push_back(absl::StrCat(name, "=", value));
  return result;
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts)
    pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Runs the guard: collects process groups, and kills them when the launcher has ended.
// `groups` has its capacity reserved, since allocation after fork may block forever on a
// lock that another thread held.
[[noreturn]] void GuardMain(int pipe, std::vector<pid_t> groups,
                            const ShownCommand& shown, const char* title) {
  prctl(PR_SET_NAME, "syncline-guard");
  shown.Become(title);
  setpgid(0, 0);  // Ctrl-C must only reach the launcher
  // The guard must not keep the launcher's output open.
  for (int fd = 0; fd < pipe; ++fd) close(fd);
  close_range(static_cast<unsigned>(pipe) + 1, ~0U, 0);
  pid_t message = 0;
  ssize_t got = 0;
  while ((got = read(pipe, &message, sizeof(message))) != 0) {
    if (got != sizeof(message)) continue;
    if (message > 0 && groups.size() < groups.capacity()) groups.push_back(message);
    if (message < 0) std::erase(groups, -message);
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

struct ExecPlan {
  char* const* argv;
  char* const* env;
  int standard[3];
  int error_pipe;
  pid_t launcher;
};

// Runs in the child. After fork, only async-signal-safe calls are allowed.
[[noreturn]] void ChildMain(const ExecPlan& plan) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan.launcher) _exit(127);  // the launcher died before prctl
  const sigset_t unblock = LauncherSignals();
  sigprocmask(SIG_UNBLOCK, &unblock, nullptr);
  signal(SIGPIPE, SIG_DFL);  // exec would keep an ignored signal ignored
  for (int i = 0; i < 3; ++i) {
    if (plan.standard[i] != i) dup2(plan.standard[i], i);
  }
  execvpe(plan.argv[0], plan.argv, plan.env);
  const int error = errno;
  WriteAll(plan.error_pipe,
           std::string_view(reinterpret_cast<const char*>(&error), sizeof(error)));
  _exit(127);
}

absl::Status ExecError(const std::string& program, int error) {
  const std::string message =
      absl::StrCat("cannot start '", program, "': ", std::strerror(error));
  return error == ENOENT
             ? absl::NotFoundError(absl::StrCat(message, "; check name and PATH"))
             : absl::PermissionDeniedError(
                   absl::StrCat(message, "; check that it is an executable file"));
}

}  // namespace

absl::Status CheckProgram(const std::string& program) {
  const auto is_program = [](const std::string& path) {
    std::error_code ignored;
    return access(path.c_str(), X_OK) == 0 &&
           !std::filesystem::is_directory(path, ignored);
  };
  if (program.find('/') != std::string::npos) {
    if (is_program(program)) return absl::OkStatus();
    const bool is_there = access(program.c_str(), F_OK) == 0;
    return WithFailure(
        absl::NotFoundError(absl::StrCat(
            "cannot run '", Printable(program), "': it is ",
            is_there ? "not an executable file; chmod +x it, or name its interpreter"
                     : "not there; check the path")),
        Failure::kUsage);
  }
  const char* path = std::getenv("PATH");
  for (const absl::string_view directory :
       absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':')) {
    // An empty element stands for the working directory.
    if (is_program(absl::StrCat(directory, directory.empty() ? "" : "/", program))) {
      return absl::OkStatus();
    }
  }
  return WithFailure(absl::NotFoundError(absl::StrCat(
                         "no program '", Printable(program),
                         "' in PATH; check its name, or write ./", Printable(program))),
                     Failure::kUsage);
}

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
  }
  return absl::StrCat("exit code ", WEXITSTATUS(wait_status));
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::Create() {
  std::unique_ptr<ProcessGroup> group(new ProcessGroup());
  const sigset_t signals = LauncherSignals();
  if (sigprocmask(SIG_BLOCK, &signals, nullptr) != 0)
    return SystemError("cannot block signals");
  group->signal_fd_ = UniqueFd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!group->signal_fd_.valid()) return SystemError("cannot watch signals");
  signal(SIGPIPE, SIG_IGN);  // with `run --tee 3 | head`, the job continues
  group->orphans_ = std::make_unique<Orphans>();
  SYNCLINE_RETURN_IF_ERROR(group->StartGuard());
  return group;
}

ProcessGroup::~ProcessGroup() {
  for (auto& [name, child] : children_) {
    kill(-child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
  }
  children_.clear();
  if (orphans_ != nullptr) orphans_->Kill([this](pid_t child) { return IsKnown(child); });
  WaitUntilShown();
  guard_pipe_.reset();
  if (guard_ > 0) waitpid(guard_, nullptr, 0);
  signal(SIGPIPE, SIG_DFL);
  const sigset_t signals = LauncherSignals();
  sigprocmask(SIG_UNBLOCK, &signals, nullptr);
}

absl::Status ProcessGroup::StartGuard() {
  UniqueFd read_end;
  SYNCLINE_RETURN_IF_ERROR(MakePipe(&read_end, &guard_pipe_));
  std::vector<pid_t> groups;
  groups.reserve(kMaxGroups);
  // The guard needs another title. Otherwise a signal to all processes of the launcher's
  // name would also go to the guard, which would ignore it.
  const ShownCommand shown = ShownCommand::OfThisProcess();
  const std::string title = absl::StrCat("syncline-guard of ", getpid());
  guard_ = fork();
  if (guard_ < 0) return SystemError("cannot start a process");
  if (guard_ == 0) {
    guard_pipe_.reset();
    GuardMain(read_end.get(), std::move(groups), shown, title.c_str());
  }
  return absl::OkStatus();
}

void ProcessGroup::TellGuard(pid_t pid) {
  WriteAll(guard_pipe_.get(),
           std::string_view(reinterpret_cast<const char*>(&pid), sizeof(pid)));
}

absl::Status ProcessGroup::Start(const ProcessSpec& spec) {
  Child child;
  child.spec = spec;
  child.started = absl::Now();
  if (!spec.log_path.empty()) {
    child.log = UniqueFd(
        open(spec.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!child.log.valid()) {
      return absl::PermissionDeniedError(
          absl::StrCat("cannot write log file '", spec.log_path,
                       "': ", std::strerror(errno), "; choose another --log-dir"));
    }
  }
  SYNCLINE_RETURN_IF_ERROR(Spawn(child));
  children_[spec.name] = std::move(child);
  return absl::OkStatus();
}

absl::Status ProcessGroup::Spawn(Child& child) {
  const std::vector<std::string> env = MergeEnvironment(child.spec.env);
  const std::vector<char*> env_pointers = Pointers(env);
  const std::vector<char*> argv_pointers = Pointers(child.spec.argv);
  UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  UniqueFd error_read;
  UniqueFd error_write;
  SYNCLINE_RETURN_IF_ERROR(MakePipe(&error_read, &error_write));
  ExecPlan plan = {argv_pointers.data(),
                   env_pointers.data(),
                   {null.get(), 1, 2},
                   error_write.get(),
                   getpid()};
  std::array<UniqueFd, 2> write_ends;
  const std::array<Output, 2> outputs = {child.spec.out, child.spec.err};
  for (int i = 0; i < 2; ++i) {
    if (outputs[i] == Output::kInherit) continue;
    Stream& stream = child.streams[i];
    SYNCLINE_RETURN_IF_ERROR(MakePipe(&stream.pipe, &write_ends[i]));
    fcntl(stream.pipe.get(), F_SETFL, O_NONBLOCK);
    stream.output = outputs[i];
    if (outputs[i] == Output::kTee) stream.target = &Shown(i + 1);
    plan.standard[i + 1] = write_ends[i].get();
  }
  child.pid = fork();
  if (child.pid < 0) return SystemError("cannot start a process");
  if (child.pid == 0) ChildMain(plan);
  // The child does the same, so that its group is set before either process needs it.
  setpgid(child.pid, child.pid);
  TellGuard(child.pid);
  error_write.reset();
  int error = 0;
  if (read(error_read.get(), &error, sizeof(error)) == sizeof(error)) {
    waitpid(child.pid, nullptr, 0);
    TellGuard(-child.pid);
    return ExecError(child.spec.argv[0], error);
  }
  return absl::OkStatus();
}

TeeStream& ProcessGroup::Shown(int fd) {
  return shown_.try_emplace(fd, fd).first->second;
}

bool ProcessGroup::IsKnown(pid_t child) const {
  return child == guard_ ||
         std::any_of(children_.begin(), children_.end(),
                     [child](const auto& entry) { return entry.second.pid == child; });
}

ProcessEvent ProcessGroup::Next(absl::Time deadline) {
  ProcessEvent event;
  for (;;) {
    if (!signals_.empty()) {
      event.kind = ProcessEvent::kSignal;
      event.signal = signals_.front();
      signals_.pop_front();
      return event;
    }
    if (std::exchange(on_line_called_, false)) {
      event.kind = ProcessEvent::kOutput;
      return event;
    }
    KillOverdue();
    if (Reap(&event)) return event;
    if (absl::Now() >= deadline) return event;
    Wait(deadline);
  }
}

std::optional<double> ProcessGroup::CpuSeconds(const std::string& name) const {
  const auto child = children_.find(name);
  if (child == children_.end()) return std::nullopt;
  clockid_t clock = 0;
  timespec used = {};
  if (clock_getcpuclockid(child->second.pid, &clock) != 0) return std::nullopt;
  if (clock_gettime(clock, &used) != 0) return std::nullopt;
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

void ProcessGroup::Stop(const std::string& name, absl::Duration grace) {
  const auto found = children_.find(name);
  if (found == children_.end()) return;
  kill(-found->second.pid, SIGTERM);
  kill(-found->second.pid, SIGCONT);  // a stopped child cannot handle SIGTERM
  found->second.kill_at = std::min(found->second.kill_at, absl::Now() + grace);
}

void ProcessGroup::KillOverdue() {
  const absl::Time now = absl::Now();
  for (auto& [name, child] : children_) {
    if (now < child.kill_at) continue;
    kill(-child.pid, SIGKILL);
    child.kill_at = absl::InfiniteFuture();
  }
}

void ProcessGroup::Wait(absl::Time deadline) {
  std::vector<pollfd> polled = {{signal_fd_.get(), POLLIN, 0}};
  std::vector<std::pair<Child*, Stream*>> owners = {{nullptr, nullptr}};
  for (auto& [name, child] : children_) {
    deadline = std::min(deadline, child.kill_at);
    for (Stream& stream : child.streams) {
      const bool is_held_up = stream.target != nullptr && stream.target->is_full();
      if (!stream.pipe.valid() || is_held_up) continue;
      polled.push_back({stream.pipe.get(), POLLIN, 0});
      owners.emplace_back(&child, &stream);
    }
  }
  const size_t pipes = polled.size();
  for (const auto& [fd, shown] : shown_) {
    if (shown.has_pending()) polled.push_back({shown.fd(), POLLOUT, 0});
  }
  // Rounds up, so that the deadline has passed when poll returns.
  const absl::Duration left =
      std::clamp(deadline - absl::Now(), absl::ZeroDuration(), kLookAnyway);
  poll(polled.data(), polled.size(),
       static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  for (size_t i = 1; i < pipes; ++i) {
    if (polled[i].revents != 0) Pump(*owners[i].first, *owners[i].second);
  }
  for (auto& [fd, shown] : shown_) shown.Flush();
  ReadSignals();
  orphans_->Reap([this](pid_t child) { return IsKnown(child); });
}

void ProcessGroup::ReadSignals() {
  signalfd_siginfo info;
  while (read(signal_fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) continue;
    signals_.push_back(static_cast<int>(info.ssi_signo));
    interrupted_ = true;
  }
}

// Blocks like any program whose reader is slow, but a signal ends the wait.
void ProcessGroup::WaitUntilShown() {
  for (;;) {
    std::vector<pollfd> polled = {{signal_fd_.get(), POLLIN, 0}};
    for (auto& [fd, shown] : shown_) {
      shown.Flush();
      if (shown.has_pending()) polled.push_back({shown.fd(), POLLOUT, 0});
    }
    if (polled.size() == 1) return;
    const bool may_wait_long = !interrupted_;
    const int ready =
        poll(polled.data(), polled.size(), may_wait_long ? -1 : kShowAfterSignalMs);
    if (ready == 0) return;
    ReadSignals();
  }
}

// Reads what the pipe holds now, at most as much as a large pipe holds.
void ProcessGroup::Pump(Child& child, Stream& stream) {
  std::array<char, 16384> bytes;
  for (int i = 0; i < kReadsAtOnce && stream.pipe.valid(); ++i) {
    const ssize_t got = read(stream.pipe.get(), bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return;  // EAGAIN: drained
    if (got == 0) {
      stream.pipe.reset();
      return;
    }
    std::string_view rest(bytes.data(), static_cast<size_t>(got));
    WriteAll(child.log.get(), rest);
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      stream.partial.append(rest.substr(0, end));
      rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
      if (end != rest.npos || stream.partial.size() > kMaxLineBytes)
        EndLine(child, stream);
    }
  }
}

void ProcessGroup::EndLine(Child& child, Stream& stream) {
  if (stream.output == Output::kTee) {
    stream.target->Write(absl::StrCat("[", child.spec.name, "]: ", stream.partial, "\n"));
  }
  if (child.spec.on_line) {
    child.spec.on_line(stream.partial);
    on_line_called_ = true;
  }
  child.tail.push_back(std::move(stream.partial));
  stream.partial.clear();
  if (child.tail.size() > kTailLines) child.tail.pop_front();
}

// Reports one child that has exited, if any.
bool ProcessGroup::Reap(ProcessEvent* event) {
  for (auto& [name, child] : children_) {
    siginfo_t info = {};
    const int flags = WEXITED | WNOHANG | WNOWAIT;
    if (waitid(P_PID, static_cast<id_t>(child.pid), &info, flags) != 0 ||
        info.si_pid == 0) {
      continue;
    }
    // Kills its children before its pid can be used again.
    kill(-child.pid, SIGKILL);
    TellGuard(-child.pid);
    rusage used = {};
    wait4(child.pid, &event->wait_status, 0, &used);
    usage_[name] = {.cpu_seconds = Seconds(used.ru_utime) + Seconds(used.ru_stime),
                    .peak_rss_bytes = int64_t{used.ru_maxrss} * 1024};
    for (Stream& stream : child.streams) {
      Pump(child, stream);
      if (!stream.partial.empty()) EndLine(child, stream);
    }
    event->kind = ProcessEvent::kExit;
    event->name = name;
    event->lived = absl::Now() - child.started;
    event->tail = std::move(child.tail);
    children_.erase(event->name);
    return true;
  }
  return false;
}

}  // namespace syncline
