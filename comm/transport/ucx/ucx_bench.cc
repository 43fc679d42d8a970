// Measures the UCX transport between two processes of this host: the round trip of small
// messages, and the throughput and CPU time of large ones. Prints one JSON object.
//
//   comm_transport_ucx_bench [--messages N] [--bytes N] [--reach host|network]
//
// Every payload is verified, outside of the measured CPU time where that is possible: the
// first and last words of each message carry its number.
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "comm/base/check.h"
#include "comm/transport/transport_bench.h"
#include "comm/transport/ucx/ucx.h"

namespace syncline {
namespace {

struct BenchOptions {
  UcxOptions ucx;
  BenchLoad load;
  std::string payload = "arena";
};

class Side : public BenchSide {
 public:
  explicit Side(const BenchOptions& options) : BenchSide(options.load) {
    auto transport = CreateUcxTransport(options.ucx, *this);
    SYNCLINE_CHECK(transport.ok());
    transport_ = *std::move(transport);
  }

  void OnBorrowed(ByteView header, Landed payload) override {
    Consume(header, {payload.body.data, payload.body.size});
  }
  // Sends the own address, and connects to the peer's.
  void Exchange(int in, int out) {
    WriteAddress(*this, out);
    ConnectWith(ReadAddress(in), {});
  }
};

// Returns memory to send, from the arena if there is one.
Slice ZeroedSlice(const BenchOptions& options, size_t bytes) {
  std::shared_ptr<std::byte> memory = options.payload != "arena"
                                          ? Buffer::Allocate(bytes).owner()
                                          : options.ucx.arena->Allocate(bytes);
  SYNCLINE_CHECK(memory != nullptr);
  std::memset(memory.get(), 0, bytes);
  return Slice{memory.get(), bytes, memory};
}

int Run(const BenchOptions& options) {
  const auto make = [&](size_t bytes) { return ZeroedSlice(options, bytes); };
  const BenchChild child = StartBenchChild([&](int in, int out) {  // before UCX is used
    Side side(options);
    side.Exchange(in, out);
    return Answer(side, options.load, make, in, out);
  });
  Side side(options);
  side.Exchange(child.in, child.out);
  nlohmann::json result = MeasureWith(side, options.load, make, child);
  result["stream"]["payload"] = options.payload;
  std::cout << result.dump(2) << std::endl;
  return 0;
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  syncline::BenchOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--messages") options.load.messages = std::atoi(argv[i + 1]);
    if (flag == "--bytes") options.load.bytes = std::strtoull(argv[i + 1], nullptr, 10);
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
