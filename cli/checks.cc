#include "cli/checks.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/version.h"
#include "comm/base/cuda/driver.h"
#include "comm/base/cuda/probe.h"
#include "comm/base/env.h"
#include "comm/base/secret_key.h"
#include "comm/base/status.h"
#include "comm/collective/group/costs.h"
#include "comm/collective/nccl/nccl_library.h"
#include "comm/rpc/address.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/server.h"
#include "comm/rpc/versions.h"
#include "comm/transport/network/network.h"
#include "comm/transport/tcp/member_key.h"
#include "comm/transport/tcp/tls_channel.h"
#include "comm/transport/ucx/ucx.h"

namespace syncline {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// Docker's default. A few UCX segments fill it.
constexpr uint64_t kSmallSharedMemory = 64 * kMiB;
// Enough for the receive buffers of a few workers.
constexpr uint64_t kSmallMemlock = 1024 * kMiB;

std::string MiB(uint64_t bytes) { return absl::StrCat(bytes / kMiB, " MiB"); }

std::vector<std::string> RdmaDevices() {
  std::vector<std::string> devices;
  std::error_code none;  // the directory is missing on hosts without RDMA
  for (const auto& entry :
       std::filesystem::directory_iterator("/sys/class/infiniband", none)) {
    devices.push_back(entry.path().filename());
  }
  return devices;
}

Check CheckSharedMemory() {
  struct statvfs info = {};
  if (statvfs("/dev/shm", &info) != 0) {
    return {"shared memory", Check::kWarn, "no /dev/shm", "mount a tmpfs on /dev/shm"};
  }
  return JudgeSharedMemory(info.f_blocks * info.f_frsize, info.f_bavail * info.f_frsize);
}

Check CheckMemlock() {
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return JudgeMemlock(limit.rlim_cur, RdmaDevices());
}

// Runs UCX's own tool. Returns a list such as "tcp/lo tcp/eth0 sysv posix cma"; empty if
// the tool is not installed.
std::string UcxTransports() {
  FILE* pipe = popen("ucx_info -d 2>/dev/null", "r");
  if (pipe == nullptr) return "";
  std::string text;
  for (int c = 0; (c = fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
  pclose(pipe);
  std::vector<std::string> found;
  std::string transport;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() < 3) continue;
    if (words[1] == "Transport:") transport = std::string(words[2]);
    if (words[1] == "Device:") found.push_back(absl::StrCat(transport, "/", words[2]));
  }
  return absl::StrJoin(found, " ");
}

class NoReceiver final : public Receiver {
 public:
  absl::StatusOr<Buffer> Allocate(ByteView, size_t) override {
    return absl::UnimplementedError("doctor takes no messages");
  }
  void OnMessage(ByteView, Buffer) override {}
};

// Connects two transports of this process and returns the lanes that UCX chose.
absl::StatusOr<std::string> UcxLanes() {
  NoReceiver receiver;
  SYNCLINE_ASSIGN_OR_RETURN(const auto one, CreateUcxTransport({}, receiver));
  SYNCLINE_ASSIGN_OR_RETURN(const auto other, CreateUcxTransport({}, receiver));
  SYNCLINE_ASSIGN_OR_RETURN(const auto endpoint, one->Connect(other->address(), {}));
  return endpoint->Describe();
}

bool SharesMemory(const std::string& lanes) {
  return absl::StrContains(lanes, "sysv") || absl::StrContains(lanes, "posix");
}

// Accepts every peer that has the key.
class OneKey final : public Acceptor {
 public:
  explicit OneKey(SecretKey key) : key_(std::move(key)) {}
  bool is_met() const { return endpoint_ != nullptr; }

  const SecretKey* FindKey(std::string_view) override { return &key_; }
  ConnectOptions OnAccepted(const std::string&,
                            std::unique_ptr<Endpoint> endpoint) override {
    endpoint_ = std::move(endpoint);
    return {};
  }

 private:
  const SecretKey key_;
  std::unique_ptr<Endpoint> endpoint_;
};

// Connects two transports of this process by a TLS handshake over loopback.
absl::StatusOr<std::string> TlsLanes() {
  NoReceiver receiver;
  const SecretKey key = DrawKey();
  OneKey acceptor(key);
  const NetworkOptions server = {
      .plan = {.mode = DataPlaneMode::kTls, .listen_host = "127.0.0.1"},
      .acceptor = &acceptor};
  const NetworkOptions worker = {.plan = {.mode = DataPlaneMode::kTls}};
  SYNCLINE_ASSIGN_OR_RETURN(const auto one, CreateNetworkTransport(server, receiver));
  SYNCLINE_ASSIGN_OR_RETURN(const auto other, CreateNetworkTransport(worker, receiver));
  absl::Status failure;
  SYNCLINE_ASSIGN_OR_RETURN(
      const auto endpoint,
      other->Connect(one->address(),
                     {.on_failure = [&](const absl::Status& why) { failure = why; },
                      .key = {"doctor", key}}));
  const SteadyClock clock;
  const absl::Duration deadline = clock.Now() + absl::Seconds(5);
  while (!acceptor.is_met() && failure.ok() && clock.Now() < deadline) {
    one->Progress();
    other->Progress();
  }
  SYNCLINE_RETURN_IF_ERROR(failure);
  if (!acceptor.is_met()) {
    return absl::DeadlineExceededError("no handshake over loopback within 5 s");
  }
  return TlsLibrary();
}

Check CheckDataPlane() { return JudgeDataPlane({UcxLanes(), TlsLanes()}); }

Check CheckUcx() {
  const auto lanes = UcxLanes();
  if (!lanes.ok()) {
    return {
        "ucx", Check::kFail,
        absl::StrCat("UCX ", UcxVersion(), ": ", std::string(lanes.status().message())),
        "check the UCX_* variables of the environment, and the output of ucx_info -d"};
  }
  Check check = JudgeUcx(UcxVersion(), UcxTransports(), *lanes);
  if (const char* wanted = std::getenv("UCX_TLS"); wanted != nullptr) {
    absl::StrAppend(&check.finding, "; of UCX_TLS=", wanted,
                    " only shared memory counts inside a host");
  }
  return check;
}

Check CheckCuda() {
  const CudaProbe probe = ProbeCuda();
  const bool has_card = std::filesystem::exists("/dev/nvidia0");
  if (has_card && probe.device_count == 0) {
    return {"cuda", Check::kWarn,
            absl::StrCat(probe.message, "; ", ProbeCudaDriver().message),
            probe.compiled ? "install an NVIDIA driver that fits the module"
                           : "build with nvcc: -DSYNCLINE_CUDA=ON"};
  }
  const bool has_any = probe.device_count > 0;
  return {"cuda", has_any ? Check::kOk : Check::kNone, probe.message, ""};
}

// Starts a gRPC server and calls it from a client of this process.
absl::Status CallOverLoopback() {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  SYNCLINE_ASSIGN_OR_RETURN(RunningServer running, StartServer(options));
  SYNCLINE_ASSIGN_OR_RETURN(const auto channel,
                            CreateChannel(running.address, {}, RpcTimeouts::Default()));
  return WaitUntilConnected(*channel, running.address, {}, absl::Seconds(5));
}

Check CheckGrpc() {
  const absl::Status called = CallOverLoopback();
  const std::string versions =
      absl::StrCat("gRPC ", GrpcVersion(), ", protobuf ", ProtobufVersion());
  if (called.ok())
    return {"grpc", Check::kOk, absl::StrCat(versions, ", loopback works"), ""};
  return {"grpc", Check::kFail,
          absl::StrCat(versions, ": ", std::string(called.message())),
          "let this host talk to itself on 127.0.0.1 (ip link set lo up; firewall)"};
}

Check CheckPorts() {
  std::vector<std::string> busy;
  for (const uint16_t port : {7070, 7071}) {
    if (!CheckCanListen({"0.0.0.0", port}).ok()) busy.push_back(absl::StrCat(port));
  }
  if (busy.empty()) return {"ports", Check::kOk, "7070 and 7071 are free", ""};
  return {"ports", Check::kWarn, absl::StrCat("in use: ", absl::StrJoin(busy, ", ")),
          "is syncline running already? otherwise use --listen and --admin-listen"};
}

Check CheckClock() {
  timex state = {};
  if (adjtimex(&state) != TIME_ERROR) return {"clock", Check::kOk, "synchronized", ""};
  return {"clock", Check::kWarn, "not synchronized: certificates and logs may be off",
          "run chrony or systemd-timesyncd on the host"};
}

Check CheckNccl() {
  using collective::NcclLibrary;
  const absl::StatusOr<NcclLibrary> nccl = NcclLibrary::Open(NcclLibrary::Default());
  if (nccl.ok()) {
    return {"nccl", Check::kOk,
            absl::StrCat("NCCL ", nccl->VersionText(),
                         ": collectives of GPU tensors, where each rank has its own GPU"),
            ""};
  }
  return {"nccl", Check::kNone,
          absl::StrCat(std::string(nccl.status().message()),
                       "; collectives of GPU tensors go through the host"),
          ""};
}

}  // namespace

const char* ResultName(Check::Result result) {
  switch (result) {
    case Check::kNone:
      return "none";
    case Check::kOk:
      return "ok";
    case Check::kWarn:
      return "warn";
    case Check::kFail:
      return "fail";
  }
  return "fail";
}

Check JudgeCpu(const MachineInfo& machine) {
  Check check = {"cpu", Check::kOk,
                 absl::StrFormat("%d cores, kernels for %s, one thread copies %.1f GB/s",
                                 machine.cores, machine.isa, machine.copy_gbs),
                 ""};
  if (machine.isa == "x86-64-v2") {
    check.result = Check::kWarn;
    check.fix =
        "kernels are fast from x86-64-v3 (AVX2) on; let the virtual machine pass it "
        "through";
  }
  return check;
}

Check JudgeSharedMemory(uint64_t total_bytes, uint64_t free_bytes) {
  const std::string finding =
      absl::StrCat(MiB(free_bytes), " free of ", MiB(total_bytes));
  if (total_bytes > kSmallSharedMemory && free_bytes > kSmallSharedMemory) {
    return {"shared memory", Check::kOk, finding, ""};
  }
  return {"shared memory", Check::kWarn, finding,
          "give the container more: docker run --shm-size=1g, or an emptyDir with medium "
          "Memory"};
}

Check JudgeMemlock(uint64_t limit_bytes, const std::vector<std::string>& rdma_devices) {
  const std::string limit =
      limit_bytes == RLIM_INFINITY ? std::string("unlimited") : MiB(limit_bytes);
  if (rdma_devices.empty()) {
    return {"memlock", Check::kOk, absl::StrCat(limit, "; no RDMA device needs it"), ""};
  }
  const std::string finding =
      absl::StrCat(limit, "; RDMA: ", absl::StrJoin(rdma_devices, " "));
  if (limit_bytes >= kSmallMemlock) return {"memlock", Check::kOk, finding, ""};
  return {
      "memlock", Check::kFail, finding,
      "RDMA registers its buffers: ulimit -l unlimited, or add the capability IPC_LOCK"};
}

Check JudgeUcx(const std::string& version, const std::string& transports,
               const std::string& lanes) {
  Check check = {"ucx", Check::kOk,
                 absl::StrCat("UCX ", version, ", on this host over ", lanes), ""};
  if (!transports.empty()) absl::StrAppend(&check.finding, "; has ", transports);
  if (!SharesMemory(lanes)) {
    check.result = Check::kWarn;
    check.fix =
        "peers of one host should share memory: check the UCX_* variables of the "
        "environment, and the output of ucx_info -d";
  }
  return check;
}

Check JudgeDataPlane(const DataPlanesFound& found) {
  Check check = {"data plane", Check::kOk, "", ""};
  const bool is_shared = found.near.ok() && SharesMemory(*found.near);
  const std::string near =
      is_shared ? absl::StrCat("shared memory (", *found.near, "), as it is fastest")
      : found.near.ok() ? *found.near
                        : "none";
  const std::string far =
      found.far.ok() ? absl::StrCat("TLS 1.3 (", *found.far, "), as it is sealed")
                     : "none";
  check.finding = absl::StrCat("auto: in this host ", near, "; to other hosts ", far);
  if (!is_shared) {
    check.result = Check::kWarn;
    check.fix = found.near.ok()
                    ? "unset the UCX_* variables of the environment, or give `syncline "
                      "serve --data-plane tls`"
                    : absl::StrCat(std::string(found.near.status().message()),
                                   "; or give `syncline serve --data-plane tls`");
  }
  if (!found.far.ok()) {
    check.result = Check::kFail;
    check.fix = std::string(found.far.status().message());
  }
  return check;
}

Check JudgeCollectives(const std::string& setting) {
  using collective::CostSource;
  collective::KnownCosts known;
  CostSource source = CostSource::kBuiltIn;
  if (!setting.empty() && setting != "probe") {
    const auto read = collective::ReadCosts(setting);
    if (!read.ok()) {
      return {"collectives", Check::kFail, std::string(read.status().message()),
              "SYNCLINE_GROUP_COSTS names that file: groups fail to form while it is so"};
    }
    known = *read;
    if (known != collective::KnownCosts{}) source = CostSource::kFile;
  }
  const collective::Topology host = {.hosts = 1, .costs = known.OrBuiltIn()};
  const collective::Topology hosts = {.hosts = 16, .costs = known.OrBuiltIn()};
  const bool is_complete = known.host && known.network && known.per_reduced_byte;
  const bool probes = !setting.empty() && !is_complete;
  return {"collectives", Check::kOk,
          absl::StrCat(collective::DescribeCostsOf(hosts, source),
                       probes            ? " (a group measures its own as it forms)"
                       : setting.empty() ? " (SYNCLINE_GROUP_COSTS=probe measures them)"
                                         : "",
                       "; 4 ranks of a host: ",
                       collective::DescribeChoices({.ranks = 4, .local = 4}, host),
                       "; 16 hosts: ", collective::DescribeChoices({.ranks = 16}, hosts)),
          ""};
}

std::vector<Check> RunChecks() {
  const char* const costs = std::getenv("SYNCLINE_GROUP_COSTS");
  return {JudgeCpu(MeasureMachine()),
          CheckSharedMemory(),
          CheckMemlock(),
          CheckUcx(),
          CheckDataPlane(),
          CheckCuda(),
          CheckNccl(),
          JudgeCollectives(costs != nullptr ? costs : ""),
          CheckGrpc(),
          CheckPorts(),
          CheckClock()};
}

}  // namespace syncline
