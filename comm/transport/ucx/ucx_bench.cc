// Measures the UCX transport between two processes of this host: the round trip of small
// messages, and the throughput and CPU time of large ones. Prints one JSON object.
//
//   comm_transport_ucx_bench [--messages N] [--bytes N] [--reach host|network]
//
// Every payload is verified, outside of the measured CPU time where that is possible: the
// first and last words of each message carry its number.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "comm/base/check.h"
#include "comm/transport/ucx/ucx.h"
#include "nlohmann/json.hpp"

namespace syncline {
namespace {

struct BenchOptions {
  UcxOptions ucx;
  int round_trips = 20000;
  size_t small_bytes = 256;
  int messages = 512;
  size_t bytes = size_t{4} << 20;
  int window = 4;
  std::string payload = "arena";
};

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// One side: a transport that counts what arrives and keeps no more than the last payload.
class Side : public Receiver {
 public:
  explicit Side(const UcxOptions& options) : pool_(size_t{64} << 20) {
    auto transport = CreateUcxTransport(options, *this);
    SYNCLINE_CHECK(transport.ok());
    transport_ = *std::move(transport);
  }

  absl::StatusOr<Buffer> Allocate(ByteView, size_t bytes) override {
    return pool_.Allocate(bytes);
  }
  void OnMessage(ByteView header, Buffer payload) override {
    Consume(header, payload.view());
  }
  void OnBorrowed(ByteView header, Landed payload) override {
    Consume(header, {payload.body.data, payload.body.size});
  }

  void Connect(const std::string& address) {
    auto endpoint = transport_->Connect(address, {});
    SYNCLINE_CHECK(endpoint.ok());
    endpoint_ = *std::move(endpoint);
  }

  // The payload's first word becomes the message's number; the others are zero.
  void Send(const Slice& payload) {
    const uint64_t number = sent_++;
    std::byte header[64] = {};
    std::memcpy(header, &number, sizeof(number));
    std::memcpy(const_cast<std::byte*>(payload.data), &number, sizeof(number));
    endpoint_->Send(header, {payload}, [this](const absl::Status& status) {
      SYNCLINE_CHECK(status.ok());
      ++completed_;
    });
  }

  // Spins a little, then sleeps, as TransportLoop does.
  void PumpUntil(const std::function<bool()>& done) {
    int idle = 0;
    while (!done()) {
      idle = transport_->Progress() > 0 ? 0 : idle + 1;
      if (idle > 200 && !done()) transport_->Wait(absl::Milliseconds(5));
    }
  }

  Transport& transport() { return *transport_; }
  Endpoint& endpoint() { return *endpoint_; }
  uint64_t arrived() const { return arrived_; }
  uint64_t sent() const { return sent_; }
  uint64_t completed() const { return completed_; }

 private:
  void Consume(ByteView header, ByteView payload) {
    uint64_t number = 0, sum = 0;
    std::memcpy(&number, header.data(), sizeof(number));
    const auto* words = reinterpret_cast<const uint64_t*>(payload.data());
    for (size_t i = 0; i < payload.size() / sizeof(uint64_t); ++i) sum += words[i];
    SYNCLINE_CHECK(number == arrived_ && sum == number);
    ++arrived_;
  }

  BufferPool pool_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Endpoint> endpoint_;
  uint64_t arrived_ = 0, sent_ = 0, completed_ = 0;
};

void WriteAll(int fd, const void* data, size_t bytes) {
  SYNCLINE_CHECK(write(fd, data, bytes) == static_cast<ssize_t>(bytes));
}
void ReadAll(int fd, void* data, size_t bytes) {
  SYNCLINE_CHECK(read(fd, data, bytes) == static_cast<ssize_t>(bytes));
}

void Exchange(Side& side, int in, int out) {
  const std::string& mine = side.transport().address();
  const uint32_t bytes = mine.size();
  WriteAll(out, &bytes, sizeof(bytes));
  WriteAll(out, mine.data(), bytes);
  uint32_t peer_bytes = 0;
  ReadAll(in, &peer_bytes, sizeof(peer_bytes));
  std::string peer(peer_bytes, '\0');
  ReadAll(in, peer.data(), peer_bytes);
  side.Connect(peer);
}

// Memory to send: of the arena, if there is one.
Slice ZeroedSlice(const BenchOptions& options, size_t bytes) {
  std::shared_ptr<std::byte> memory = options.payload != "arena"
                                          ? Buffer::Allocate(bytes).owner()
                                          : options.ucx.arena->Allocate(bytes);
  SYNCLINE_CHECK(memory != nullptr);
  std::memset(memory.get(), 0, bytes);
  return Slice{memory.get(), bytes, memory};
}

// Answers each small message with one of the same size, then takes the large ones and
// says so.
int RunChild(const BenchOptions& options, int in, int out) {
  Side side(options.ucx);
  Exchange(side, in, out);
  const Slice small = ZeroedSlice(options, options.small_bytes);
  for (int i = 0; i < options.round_trips; ++i) {
    side.PumpUntil([&] { return side.arrived() > static_cast<uint64_t>(i); });
    side.Send(small);
  }
  const double cpu = CpuSeconds();
  const uint64_t all = options.round_trips + options.messages;
  side.PumpUntil([&] { return side.arrived() == all; });
  const double used = CpuSeconds() - cpu;
  side.Send(small);
  side.PumpUntil([&] { return side.completed() == side.sent(); });
  WriteAll(out, &used, sizeof(used));
  char done;
  while (read(in, &done, 1) != 0) {
  }
  return 0;
}

nlohmann::json RoundTrips(Side& side, const BenchOptions& options) {
  const Slice small = ZeroedSlice(options, options.small_bytes);
  std::vector<double> micros;
  for (int i = 0; i < options.round_trips; ++i) {
    const absl::Time start = absl::Now();
    side.Send(small);
    side.PumpUntil([&] { return side.arrived() > static_cast<uint64_t>(i); });
    micros.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
  }
  std::sort(micros.begin(), micros.end());
  const auto at = [&](double q) {
    return micros[static_cast<size_t>(q * (micros.size() - 1))];
  };
  return {{"bytes", options.small_bytes}, {"median_us", at(0.5)}, {"p99_us", at(0.99)}};
}

nlohmann::json Stream(Side& side, const BenchOptions& options, int in) {
  std::vector<Slice> payloads;
  for (int i = 0; i < options.window; ++i) {
    payloads.push_back(ZeroedSlice(options, options.bytes));
  }
  const uint64_t completed = side.completed(), arrived = side.arrived();
  const double cpu = CpuSeconds();
  const absl::Time start = absl::Now();
  for (int i = 0; i < options.messages; ++i) {
    side.PumpUntil([&] {
      return side.completed() - completed + options.window > static_cast<uint64_t>(i);
    });
    side.Send(payloads[i % options.window]);
  }
  side.PumpUntil([&] { return side.arrived() > arrived; });
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  const double sender_cpu = CpuSeconds() - cpu;
  double receiver_cpu = 0;
  ReadAll(in, &receiver_cpu, sizeof(receiver_cpu));
  const double gigabytes = 1e-9 * options.bytes * options.messages;
  return {{"bytes", options.bytes},
          {"payload", options.payload},
          {"messages", options.messages},
          {"gbs", gigabytes / seconds},
          {"cpu_seconds_per_gb", (sender_cpu + receiver_cpu) / gigabytes}};
}

double CopyGbs(size_t bytes) {
  std::vector<char> from(bytes, 1), to(bytes, 2);
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const absl::Time start = absl::Now();
    std::memcpy(to.data(), from.data(), bytes);
    best = std::min(best, absl::ToDoubleSeconds(absl::Now() - start));
  }
  return 1e-9 * bytes / best;
}

int Run(const BenchOptions& options) {
  int to_child[2], from_child[2];
  SYNCLINE_CHECK(pipe(to_child) == 0 && pipe(from_child) == 0);
  const pid_t child = fork();  // before UCX is used and any thread runs
  if (child == 0) {
    close(to_child[1]);
    close(from_child[0]);
    _exit(RunChild(options, to_child[0], from_child[1]));
  }
  close(to_child[0]);
  close(from_child[1]);
  Side side(options.ucx);
  Exchange(side, from_child[0], to_child[1]);
  nlohmann::json result;
  result["machine"] = {{"cores", std::thread::hardware_concurrency()},
                       {"copy_gbs", CopyGbs(size_t{256} << 20)}};
  result["round_trip"] = RoundTrips(side, options);
  result["lanes"] = side.endpoint().Describe();
  result["stream"] = Stream(side, options, from_child[0]);
  std::cout << result.dump(2) << std::endl;
  close(to_child[1]);
  waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  syncline::BenchOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--messages") options.messages = std::atoi(argv[i + 1]);
    if (flag == "--bytes") options.bytes = std::strtoull(argv[i + 1], nullptr, 10);
    if (flag == "--payload") options.payload = argv[i + 1];
    if (flag == "--reach" && std::string(argv[i + 1]) == "network") {
      options.ucx.reach = syncline::Reach::kNetwork;
    }
  }
  options.ucx.arena = syncline::SharedArena::Create(
      options.payload == "ucx" ? syncline::SharedArenaOptions{0, 0}
                               : syncline::SharedArenaOptions{});
  return syncline::Run(options);
}
