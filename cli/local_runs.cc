#include "cli/local_runs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/serve_options.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/rpc/address.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

constexpr char kDefaultCoordinator[] = "127.0.0.1:7070";
constexpr uint16_t kDefaultPort = 7070;

bool DefaultListens() {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(kDefaultPort);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // On loopback, a connection is accepted or refused at once.
  return socket.valid() &&
         connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                 sizeof(address)) == 0;
}

// Returns whether the run's launcher is alive, since it holds the lock.
bool IsLocked(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  return file.valid() && flock(file.get(), LOCK_EX | LOCK_NB) != 0;
}

}  // namespace

LocalRun::LocalRun(const std::string& directory, const std::string& coordinator,
                   const std::string& job) {
  if (directory.empty()) return;
  std::error_code error;
  fs::create_directories(directory, error);
  const std::string path = absl::StrCat(directory, "/", getpid());
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const std::string said = absl::StrCat(coordinator, "\n", job, "\n");
  if (!file.valid() || flock(file.get(), LOCK_EX | LOCK_NB) != 0) return;
  if (write(file.get(), said.data(), said.size()) != static_cast<ssize_t>(said.size())) {
    fs::remove(path, error);
    return;
  }
  path_ = path;
  lock_ = std::move(file);
}

LocalRun::~LocalRun() {
  std::error_code ignored;
  if (lock_.valid()) fs::remove(path_, ignored);
}

LocalRun& LocalRun::operator=(LocalRun&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(lock_, other.lock_);
  return *this;
}

std::vector<FoundRun> FindLocalRuns(const std::string& directory) {
  std::vector<FoundRun> runs;
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string path = entry->path().string();
    if (!IsLocked(path)) {
      std::error_code ignored;
      fs::remove(path, ignored);
      continue;
    }
    FoundRun run;
    std::ifstream file(path);
    // Ignores a file that is incomplete or is not such a file.
    if (!std::getline(file, run.coordinator) || !std::getline(file, run.job)) continue;
    if (ParseHostPort(run.coordinator).ok()) runs.push_back(std::move(run));
  }
  return runs;
}

std::string LocalRunsDirectory() {
  const auto state = DefaultStateDir([](const char* name) { return std::getenv(name); });
  return state.ok() ? *state + "/runs" : "";
}

absl::StatusOr<std::string> ChooseCoordinator(const std::string& given,
                                              const std::vector<FoundRun>& runs,
                                              bool default_listens) {
  if (!given.empty()) return given;
  if (default_listens || runs.empty()) return kDefaultCoordinator;
  if (runs.size() == 1) return runs.front().coordinator;
  std::string several = "several runs are on this host; choose one:";
  for (const FoundRun& run : runs) {
    absl::StrAppend(&several, several.back() == ':' ? "" : ",", " --coordinator ",
                    run.coordinator, " (job ", Printable(run.job), ")");
  }
  return WithFailure(absl::InvalidArgumentError(several), Failure::kUsage);
}

std::vector<std::string> JobsStartedWith(const std::string& coordinator,
                                         const std::vector<FoundRun>& runs) {
  std::vector<std::string> jobs;
  for (const FoundRun& run : runs) {
    if (run.coordinator == coordinator) jobs.push_back(run.job);
  }
  return jobs;
}

std::vector<std::string> JobsStartedWith(const std::string& coordinator) {
  return JobsStartedWith(coordinator, FindLocalRuns(LocalRunsDirectory()));
}

std::vector<FoundRun> RunsOf(const std::string& job, std::vector<FoundRun> runs) {
  const auto is_of_job = [&](const FoundRun& run) { return run.job == job; };
  if (std::ranges::none_of(runs, is_of_job)) return runs;
  std::erase_if(runs, std::not_fn(is_of_job));
  return runs;
}

absl::StatusOr<std::string> CoordinatorToAsk(const std::string& given,
                                             const std::string& job) {
  if (!given.empty()) return given;
  return ChooseCoordinator(given, RunsOf(job, FindLocalRuns(LocalRunsDirectory())),
                           DefaultListens());
}

std::string CoordinatorToAskNow(const std::string& given, const std::string& job,
                                const std::string& asked) {
  return CoordinatorToAsk(given, job).value_or(asked);
}

void AddCoordinatorFlag(CLI::App& command, std::string* coordinator) {
  command.add_option("--coordinator", *coordinator,
                     absl::StrCat("HOST:PORT to ask (default: ", kDefaultCoordinator,
                                  ", or the `syncline run` of this host)"));
}

}  // namespace syncline
