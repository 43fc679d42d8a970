#include "comm/transport/ucx/worker.h"

#include <dlfcn.h>
#include <signal.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/limits.h"
#include "comm/base/sanitizers.h"
#include "comm/base/status.h"
#include "comm/transport/ucx/lanes.h"
#include "comm/transport/ucx/process_watch.h"
#include "comm/transport/ucx/queue_memory.h"
#include "comm/transport/ucx/transports.h"

namespace syncline {
namespace {

// A setting of UCX, and the environment variables with which a user may override it.
struct Setting {
  const char* key;
  std::string value;
  std::vector<const char*> variables;
};

// Returns true if UCX's keepalive is needed. UCX 1.13 can crash in it
// (ucp_ep_do_uct_ep_am_keepalive, on a lane that is being closed), so it is off where
// pidfds report the end of every peer.
bool UcxLooksForEnds(Reach reach) {
  return reach != Reach::kHostOnly || ProcessWatch::Open(getpid()) == nullptr;
}

// Once, as a server has many transports.
void SayWhatIsIgnored(const TransportChoice& choice, const UcxOptions& options) {
  if (choice.ignored.empty()) return;
  static std::once_flag once;
  std::call_once(once, [&] {
    options.log.Warning(
        options.reach == Reach::kHostOnly
            ? "UCX_TLS names more than shared memory, which alone is used inside a host"
            : "UCX_TLS names TCP, which is never used beside RDMA",
        {{"ignored", absl::StrJoin(choice.ignored, ",")}, {"used", choice.tls}});
  });
}

std::vector<Setting> SettingsFor(const UcxOptions& options) {
  const TransportChoice choice = ChooseTransports(
      options.reach, QueueMemoryFor(DevShmBytes()), std::getenv("UCX_TLS"));
  SayWhatIsIgnored(choice, options);
  return {
      // Includes what the user wants (transports.h). CMA makes a system call for every
      // copy, fails in containers, and is slower than shared memory.
      {"TLS", choice.tls, {}},
      // Shared memory needs no registration. Without the cache UCX does not patch mmap,
      // munmap and madvise of the whole process.
      {"RCACHE_ENABLE",
       options.reach == Reach::kHostOnly ? "n" : "try",
       {"UCX_RCACHE_ENABLE"}},
      // Without this setting, endpoints that report failures silently use TCP between
      // processes of one host.
      {"MM_ERROR_HANDLING",
       "y",
       {"UCX_MM_ERROR_HANDLING", "UCX_SYSV_ERROR_HANDLING", "UCX_POSIX_ERROR_HANDLING"}},
      {"KEEPALIVE_INTERVAL",
       UcxLooksForEnds(options.reach)
           ? absl::StrCat(absl::ToInt64Milliseconds(options.keepalive), "ms")
           : "inf",
       {"UCX_KEEPALIVE_INTERVAL"}},
  };
}

bool UserDecided(const Setting& setting) {
  for (const char* variable : setting.variables) {
    if (std::getenv(variable) != nullptr) return true;
  }
  return false;
}

absl::Status Apply(const UcxOptions& options, ucp_config_t* config) {
  for (const Setting& setting : SettingsFor(options)) {
    if (UserDecided(setting)) continue;
    const ucs_status_t status =
        ucp_config_modify(config, setting.key, setting.value.c_str());
    if (status != UCS_OK) {
      return StatusFromUcx(status, absl::StrCat("UCX setting ", setting.key));
    }
  }
  return absl::OkStatus();
}

// ThreadSanitizer takes UCX's spin lock, which is called from outside of UCX, for a bug
// of this program.
#ifdef SYNCLINE_TSAN
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

// UCX installs handlers for these signals when it is loaded, but crashes are for the
// program to handle. A handler that was installed since then stays.
void ReleaseSignals() {
  for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) {
    struct sigaction action = {};
    Dl_info library = {};
    sigaction(signal, nullptr, &action);
    if (dladdr(reinterpret_cast<void*>(action.sa_sigaction), &library) != 0 &&
        absl::StrContains(library.dli_fname, "libucs")) {
      ucs_debug_disable_signal(signal);
    }
  }
}

// Once, because several transports may start on different threads at the same time.
void ReleaseSignalsOnce() {
  static std::once_flag once;
  if (!kThreadSanitizer) std::call_once(once, ReleaseSignals);
}

// NOLINTNEXTLINE(readability-function-size): as UCX has it
ucs_log_func_rc_t DropLine(const char* /*file*/, unsigned /*line*/,
                           const char* /*function*/, ucs_log_level_t level,
                           const ucs_log_component_config_t* /*config*/,
                           const char* /*message*/, va_list /*arguments*/) {
  return level == UCS_LOG_LEVEL_FATAL ? UCS_LOG_FUNC_RC_CONTINUE : UCS_LOG_FUNC_RC_STOP;
}

// Keeps UCX's own log lines away from the terminal. Failures are reported by errors of
// endpoints, which name the peer. UCX also logs about peers that are known to be gone,
// which looks like a crash. With UCX_LOG_LEVEL set, its lines are shown.
void LeaveReportsToErrors() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (std::getenv("UCX_LOG_LEVEL") == nullptr) ucs_log_push_handler(DropLine);
  });
}

// Once, as a server has many transports.
void SayWhereQueuesAre(const Logger& log) {
  static std::once_flag once;
  const uint64_t bytes = DevShmBytes();
  if (QueueMemoryFor(bytes) == QueueMemory::kPosix) return;
  std::call_once(once, [&] {
    log.Info("queues of shared memory lie in System V segments, as /dev/shm is small",
             {{"dev_shm_mib", bytes >> 20}});
  });
}

// Adds the free space of /dev/shm to an error.
absl::Status WithRoomLeft(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(std::string(status.message()), "; /dev/shm has ",
                   FreeDevShmBytes() >> 20, " MiB left of ", DevShmBytes() >> 20,
                   ": free some (ls -l /dev/shm), or give the container more "
                   "(docker run --shm-size=1g)"));
}

}  // namespace

absl::Status StatusFromUcx(ucs_status_t status, absl::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", ucs_status_string(status));
  switch (status) {
    case UCS_ERR_CANCELED:
      return absl::CancelledError(message);
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
      return absl::InvalidArgumentError(message);
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(const UcxOptions& options) {
  auto worker = std::unique_ptr<UcxWorker>(new UcxWorker);
  SYNCLINE_RETURN_IF_ERROR(worker->Open(options));
  return worker;
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

absl::Status UcxWorker::Open(const UcxOptions& options) {
  ReleaseSignalsOnce();
  SayWhereQueuesAre(options.log);

  ucp_config_t* config = nullptr;
  LeaveReportsToErrors();
  SYNCLINE_RETURN_IF_ERROR(
      StatusFromUcx(ucp_config_read(nullptr, nullptr, &config), "reading UCX settings"));
  const absl::Cleanup release_config = [config] { ucp_config_release(config); };
  SYNCLINE_RETURN_IF_ERROR(Apply(options, config));

  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  SYNCLINE_RETURN_IF_ERROR(
      StatusFromUcx(ucp_init(&params, config, &context_), "opening UCX"));
  SYNCLINE_RETURN_IF_ERROR(CheckResources(options.reach, ResourcesOf(context_)));

  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  SYNCLINE_RETURN_IF_ERROR(WithRoomLeft(StatusFromUcx(
      ucp_worker_create(context_, &worker_params, &worker_), "creating a UCX worker")));
  TakeSegmentsFromGroup();

  ucp_worker_attr_t attributes = {};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  SYNCLINE_RETURN_IF_ERROR(
      StatusFromUcx(ucp_worker_query(worker_, &attributes), "querying the UCX worker"));
  if (attributes.max_am_header < kMessageHeaderBytes) {
    return absl::UnavailableError(absl::StrCat("UCX carries headers of at most ",
                                               attributes.max_am_header, " bytes, ",
                                               kMessageHeaderBytes, " are needed"));
  }
  return StatusFromUcx(ucp_worker_get_efd(worker_, &event_fd_),
                       "getting the wake-up descriptor of UCX");
}

UcxWorker::Armed UcxWorker::Arm() {
  // Any result except OK, errors included, means that Progress() has something to do or
  // to report.
  return ucp_worker_arm(worker_) == UCS_OK ? Armed::kYes : Armed::kEventsPending;
}

absl::StatusOr<std::string> UcxWorker::Address() const {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  SYNCLINE_RETURN_IF_ERROR(StatusFromUcx(
      ucp_worker_get_address(worker_, &address, &bytes), "getting the UCX address"));
  std::string result(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(worker_, address);
  return result;
}

}  // namespace syncline
