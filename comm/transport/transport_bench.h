// What the benchmarks of transports share: a child process that answers, and a parent
// that measures. Every message carries its number.
//
//   const BenchChild child = StartBenchChild([&](int in, int out) { ... });
//   Side side(options);  // a BenchSide
//   side.Connect(ReadAddress(child.in));
//   std::cout << MeasureWith(side, load, ZeroedSlice, child).dump(2);
//
// Thread safety: none.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "comm/base/check.h"
#include "comm/base/env.h"
#include "comm/transport/transport.h"
#include "nlohmann/json.hpp"

namespace syncline {

struct BenchLoad {
  int round_trips = 20000;
  size_t small_bytes = 256;
  int messages = 512;
  size_t bytes = size_t{4} << 20;
  int window = 4;
  bool sum = true;  // The receiver reads and sums every word.
};

// One side: a transport that counts messages and keeps only the last payload. The
// constructor of a derived class makes the transport.
class BenchSide : public Receiver {
 public:
  explicit BenchSide(const BenchLoad& load) : sum_(load.sum), pool_(size_t{64} << 20) {}

  absl::StatusOr<Buffer> Allocate(ByteView, size_t bytes) override {
    return pool_.Allocate(bytes);
  }
  void OnMessage(ByteView header, Buffer payload) override {
    Consume(header, payload.view());
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
  void PumpUntil(absl::FunctionRef<bool()> done) {
    int idle = 0;
    while (!done()) {
      idle = transport_->Progress() > 0 ? 0 : idle + 1;
      if (idle > 200 && !done()) transport_->Wait(absl::Milliseconds(5));
    }
  }

  const Transport& transport() const { return *transport_; }
  Endpoint& endpoint() { return *endpoint_; }
  uint64_t arrived() const { return arrived_; }
  uint64_t sent() const { return sent_; }
  uint64_t completed() const { return completed_; }

 protected:
  void ConnectWith(const std::string& address, const ConnectOptions& options) {
    auto endpoint = transport_->Connect(address, options);
    SYNCLINE_CHECK(endpoint.ok());
    endpoint_ = *std::move(endpoint);
  }
  void Consume(ByteView header, ByteView payload) {
    uint64_t number = 0, sum = 0;
    std::memcpy(&number, header.data(), sizeof(number));
    const auto* words = reinterpret_cast<const uint64_t*>(payload.data());
    const size_t count = sum_ ? payload.size() / sizeof(uint64_t) : 1;
    for (size_t i = 0; i < count; ++i) sum += words[i];
    SYNCLINE_CHECK(number == arrived_ && sum == number);
    ++arrived_;
  }

 private:
  const bool sum_;
  BufferPool pool_;

 protected:
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Endpoint> endpoint_;

 private:
  uint64_t arrived_ = 0, sent_ = 0, completed_ = 0;
};

inline double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

inline void WriteAll(int fd, const void* data, size_t bytes) {
  SYNCLINE_CHECK(write(fd, data, bytes) == static_cast<ssize_t>(bytes));
}
inline void ReadAll(int fd, void* data, size_t bytes) {
  SYNCLINE_CHECK(read(fd, data, bytes) == static_cast<ssize_t>(bytes));
}

inline std::string ReadAddress(int in) {
  uint32_t bytes = 0;
  ReadAll(in, &bytes, sizeof(bytes));
  std::string address(bytes, '\0');
  ReadAll(in, address.data(), bytes);
  return address;
}
inline void WriteAddress(const BenchSide& side, int out) {
  const std::string& address = side.transport().address();
  const uint32_t bytes = address.size();
  WriteAll(out, &bytes, sizeof(bytes));
  WriteAll(out, address.data(), bytes);
}

// Returns memory of that size to send, all zero.
using MakeSlice = absl::FunctionRef<Slice(size_t)>;

struct BenchChild {
  pid_t pid = 0;
  int in = -1;  // from the child
  int out = -1;
};

// Runs `body` in a child process, with its ends of the pipes. Call it before any thread
// runs.
inline BenchChild StartBenchChild(absl::FunctionRef<int(int, int)> body) {
  int to_child[2], from_child[2];
  SYNCLINE_CHECK(pipe(to_child) == 0 && pipe(from_child) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    close(to_child[1]);
    close(from_child[0]);
    _exit(body(to_child[0], from_child[1]));
  }
  close(to_child[0]);
  close(from_child[1]);
  return {.pid = pid, .in = from_child[0], .out = to_child[1]};
}

// The child: answers each small message with one of the same size. Then receives the
// large ones, and confirms them.
inline int Answer(BenchSide& side, const BenchLoad& load, MakeSlice make, int in,
                  int out) {
  const Slice small = make(load.small_bytes);
  for (int i = 0; i < load.round_trips; ++i) {
    side.PumpUntil([&] { return side.arrived() > static_cast<uint64_t>(i); });
    side.Send(small);
  }
  const double cpu = CpuSeconds();
  const uint64_t all = load.round_trips + load.messages;
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

inline nlohmann::json RoundTrips(BenchSide& side, const BenchLoad& load, MakeSlice make) {
  const Slice small = make(load.small_bytes);
  std::vector<double> micros;
  const SteadyClock clock;
  for (int i = 0; i < load.round_trips; ++i) {
    const absl::Duration start = clock.Now();
    side.Send(small);
    side.PumpUntil([&] { return side.arrived() > static_cast<uint64_t>(i); });
    micros.push_back(absl::ToDoubleMicroseconds(clock.Now() - start));
  }
  std::sort(micros.begin(), micros.end());
  const auto at = [&](double q) {
    return micros[static_cast<size_t>(q * (micros.size() - 1))];
  };
  return {{"bytes", load.small_bytes}, {"median_us", at(0.5)}, {"p99_us", at(0.99)}};
}

inline nlohmann::json Stream(BenchSide& side, const BenchLoad& load, MakeSlice make,
                             int in) {
  std::vector<Slice> payloads;
  for (int i = 0; i < load.window; ++i) payloads.push_back(make(load.bytes));
  const uint64_t completed = side.completed(), arrived = side.arrived();
  const double cpu = CpuSeconds();
  const SteadyClock clock;
  const absl::Duration start = clock.Now();
  for (int i = 0; i < load.messages; ++i) {
    side.PumpUntil([&] {
      return side.completed() - completed + load.window > static_cast<uint64_t>(i);
    });
    side.Send(payloads[i % load.window]);
  }
  side.PumpUntil([&] { return side.arrived() > arrived; });
  const double seconds = absl::ToDoubleSeconds(clock.Now() - start);
  const double sender_cpu = CpuSeconds() - cpu;
  double receiver_cpu = 0;
  ReadAll(in, &receiver_cpu, sizeof(receiver_cpu));
  const double gigabytes = 1e-9 * load.bytes * load.messages;
  return {{"bytes", load.bytes},
          {"messages", load.messages},
          {"gbs", gigabytes / seconds},
          {"cpu_seconds_per_gb", (sender_cpu + receiver_cpu) / gigabytes}};
}

inline double CopyGbs(size_t bytes) {
  std::vector<char> from(bytes, 1), to(bytes, 2);
  double best = 1e9;
  const SteadyClock clock;
  for (int i = 0; i < 5; ++i) {
    const absl::Duration start = clock.Now();
    std::memcpy(to.data(), from.data(), bytes);
    best = std::min(best, absl::ToDoubleSeconds(clock.Now() - start));
  }
  return 1e-9 * bytes / best;
}

// The parent, once it is connected: returns the report, and ends the child.
inline nlohmann::json MeasureWith(BenchSide& side, const BenchLoad& load, MakeSlice make,
                                  const BenchChild& child) {
  nlohmann::json result;
  result["machine"] = {{"cores", std::thread::hardware_concurrency()},
                       {"copy_gbs", CopyGbs(size_t{256} << 20)}};
  result["round_trip"] = RoundTrips(side, load, make);
  result["lanes"] = side.endpoint().Describe();
  result["stream"] = Stream(side, load, make, child.in);
  close(child.out);
  waitpid(child.pid, nullptr, 0);
  return result;
}

}  // namespace syncline
