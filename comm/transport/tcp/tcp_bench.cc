// Measures the TCP transport between two processes of this host: the round trip of small
// messages, and the throughput and CPU time of large ones. Prints one JSON object.
//
//   comm_transport_tcp_bench [--messages N] [--bytes N] [--window N] [--gather N]
//                            [--security tls|plain] [--sum yes|no]
//
// Every message carries its number; with --sum yes, the default, the receiver also reads
// and sums every word.
#include <array>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "comm/base/check.h"
#include "comm/transport/tcp/tcp.h"
#include "comm/transport/transport_bench.h"

namespace syncline {
namespace {

struct BenchOptions {
  TcpOptions tcp;
  BenchLoad load;
};

PeerKey BenchKey() {
  constexpr std::array<std::byte, SecretKey::kBytes> kBytes = {};
  return {"bench", *SecretKey::From(kBytes)};
}

class Side : public BenchSide, public Acceptor {
 public:
  explicit Side(const BenchOptions& options) : BenchSide(options.load) {
    TcpOptions tcp = options.tcp;
    tcp.listen_host = "127.0.0.1";
    tcp.acceptor = this;
    auto transport = CreateTcpTransport(tcp, *this);
    SYNCLINE_CHECK(transport.ok());
    transport_ = *std::move(transport);
  }

  const SecretKey* FindKey(std::string_view) override { return &key_.key; }
  ConnectOptions OnAccepted(const std::string&,
                            std::unique_ptr<Endpoint> endpoint) override {
    endpoint_ = std::move(endpoint);
    return {.receiver = this};
  }
  void Connect(const std::string& address) { ConnectWith(address, {.key = key_}); }

 private:
  const PeerKey key_ = BenchKey();
};

Slice ZeroedSlice(size_t bytes) {
  const Buffer memory = Buffer::Allocate(bytes);
  std::memset(memory.data(), 0, bytes);
  return Slice::Of(memory);
}

int Run(const BenchOptions& options) {
  const BenchChild child = StartBenchChild([&](int in, int out) {
    Side side(options);
    WriteAddress(side, out);
    return Answer(side, options.load, ZeroedSlice, in, out);
  });
  Side side(options);
  side.Connect(ReadAddress(child.in));
  std::cout << MeasureWith(side, options.load, ZeroedSlice, child).dump(2) << std::endl;
  return 0;
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  syncline::BenchOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--messages") options.load.messages = std::atoi(argv[i + 1]);
    if (flag == "--window") options.load.window = std::atoi(argv[i + 1]);
    if (flag == "--bytes") options.load.bytes = std::strtoull(argv[i + 1], nullptr, 10);
    if (flag == "--gather") {
      options.tcp.gather_bytes = std::strtoull(argv[i + 1], nullptr, 10);
    }
    if (flag == "--sum") options.load.sum = value == "yes";
    if (flag == "--security" && value == "plain") {
      options.tcp.security = syncline::TcpSecurity::kPlain;
    }
  }
  return syncline::Run(options);
}
