// A test fixture: an authority in a directory, and a server for it on a free port.
#pragma once

#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>

#include "absl/time/clock.h"
#include "cli/authority/directory.h"
#include "cli/authority/join_service.h"
#include "cli/authority/token_book.h"
#include "comm/rpc/issuer.h"
#include "comm/rpc/join_channel.h"
#include "comm/rpc/join_token.h"
#include "gtest/gtest.h"

namespace syncline::certs {

inline std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Answering {
 public:
  explicit Answering(const std::string& directory) : directory_(directory) {
    const absl::Time now = absl::Now();
    const PemPair ca = *MakeAuthority({.name = "ca",
                                       .uri = "spiffe://d/syncline/c",
                                       .validity = {now - absl::Hours(1), now + kLife}});
    EXPECT_EQ(WritePair(directory_ + "/ca", ca), absl::OkStatus());
    authority_ = *ReadAuthority(directory_);
    service_ = std::make_unique<JoinService>(
        authority_,
        JoinServiceOptions{
            .directory = directory_,
            .audit = Logger::Create({.format = LogFormat::kJson, .stream = &audit_})});
    auto running = StartJoinServer({.listen = "127.0.0.1:0",
                                    .authority = authority_.pair,
                                    .validity = {now - absl::Hours(1), now + kLife},
                                    .service = service_.get()});
    EXPECT_TRUE(running.ok()) << running.status();
    running_ = *std::move(running);
  }
  ~Answering() { Stop(); }

  void Stop() {
    running_.Shutdown(absl::ZeroDuration());
    running_ = {};
  }

  JoinToken Token(const TokenTerms& terms) const {
    JoinToken token = DrawJoinToken();
    token.authority = authority_.fingerprint;
    token.address = running_.address;
    EXPECT_EQ(syncline::certs::AddToken(
                  directory_, {token.id, HashOfSecret(token.secret)}, terms, absl::Now()),
              absl::OkStatus());
    return token;
  }
  const std::string& address() const { return running_.address; }
  const Authority& authority() const { return authority_; }
  std::string audit() {
    Stop();
    return audit_.str();
  }

 private:
  static constexpr absl::Duration kLife = absl::Hours(48);

  const std::string directory_;
  std::ostringstream audit_;
  Authority authority_;
  std::unique_ptr<JoinService> service_;
  RunningServer running_;
};

}  // namespace syncline::certs
