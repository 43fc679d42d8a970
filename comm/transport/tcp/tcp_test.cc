#include "comm/transport/tcp/tcp.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/tcp/socket.h"
#include "comm/transport/tcp/tcp_test_util.h"
#include "comm/transport/transport_contract.h"

namespace syncline {
namespace {

class TcpRig : public TransportRig {
 public:
  TcpRig(int transports, const TcpOptions& options) : options_(options) {
    for (int i = 0; i < transports; ++i) {
      nodes_.push_back(std::make_unique<TcpNode>(options));
    }
  }

  Transport& transport(int i) override { return *nodes_[i]->transport; }
  RecordingReceiver& receiver(int i) override { return nodes_[i]->receiver; }
  void Pump() override {
    for (const auto& node : nodes_) node->transport->Progress();
    if (victim_ != nullptr) victim_->transport->Progress();
  }
  PeerKey key() const override { return Alice(); }

  std::string StartVictim() override {
    victim_ = std::make_unique<TcpNode>(options_);
    return victim_->transport->address();
  }
  void KillVictim() override { victim_ = nullptr; }

 private:
  const TcpOptions options_;
  std::vector<std::unique_ptr<TcpNode>> nodes_;
  std::unique_ptr<TcpNode> victim_;
};

RigFactory Factory(const std::string& name, const TcpOptions& options) {
  return {name, [options](int transports) {
            return std::make_unique<TcpRig>(transports, options);
          }};
}

INSTANTIATE_TEST_SUITE_P(
    Tcp, TransportContract,
    ::testing::Values(Factory("tls", {}),
                      Factory("plain", {.security = TcpSecurity::kPlain}),
                      // Every write is cut off somewhere.
                      Factory("tls_by_little", {.gather_bytes = 1000}),
                      Factory("plain_by_little",
                              {.security = TcpSecurity::kPlain, .gather_bytes = 1000})),
    [](const auto& info) { return info.param.name; });

TEST(TcpRoundTrip, IsUnknownUntilTheKernelHasMeasuredIt) {
  EXPECT_EQ(RoundTripOf(~uint32_t{0}), absl::ZeroDuration()) << "no sample yet";
  EXPECT_EQ(RoundTripOf(60'000'001), absl::ZeroDuration());
  EXPECT_EQ(RoundTripOf(60'000'000), absl::Seconds(60));
  EXPECT_EQ(RoundTripOf(850), absl::Microseconds(850));
  EXPECT_EQ(RoundTripOf(0), absl::ZeroDuration());
}

}  // namespace
}  // namespace syncline
