// The other process of the UCX tests. Its transport sends every message back to the peer
// to which it was told to connect. Its commands and answers are lines on standard input
// and output:
//
//   (at start)      -> address HEX
//   connect HEX     -> connected
//   lanes           -> lanes LOCAL|REMOTE NAMES
//   flood HEX       sends 1 MiB messages to HEX forever
//   (end of input)  exits
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "comm/base/check.h"
#include "comm/transport/ucx/ucx.h"

namespace syncline {
namespace {

class Peer : public Receiver {
 public:
  explicit Peer(const UcxOptions& options) {
    auto transport = CreateUcxTransport(options, *this);
    SYNCLINE_CHECK(transport.ok());
    transport_ = *std::move(transport);
    Say("address " + absl::BytesToHexString(transport_->address()));
  }

  absl::StatusOr<Buffer> Allocate(ByteView, size_t bytes) override {
    return Buffer::Allocate(bytes);
  }

  void OnMessage(ByteView header, Buffer payload) override {
    if (endpoint_ == nullptr) return;
    endpoint_->Send(header, {Slice::Of(payload)}, nullptr);
  }

  void Run() {
    std::string input;
    while (ReadInto(input)) {
      for (size_t end; (end = input.find('\n')) != std::string::npos;) {
        Obey(input.substr(0, end));
        input.erase(0, end + 1);
      }
      if (flooding_) Flood();
      if (transport_->Progress() == 0 && !flooding_)
        transport_->Wait(absl::Milliseconds(2));
    }
  }

 private:
  static void Say(const std::string& line) { std::cout << line << std::endl; }

  // Returns false at the end of the input.
  static bool ReadInto(std::string& input) {
    pollfd descriptor = {STDIN_FILENO, POLLIN, 0};
    if (poll(&descriptor, 1, 0) == 0) return true;
    char bytes[4096];
    const ssize_t count = read(STDIN_FILENO, bytes, sizeof(bytes));
    if (count <= 0) return false;
    input.append(bytes, count);
    return true;
  }

  void Connect(const std::string& hex) {
    auto endpoint = transport_->Connect(absl::HexStringToBytes(hex), {});
    SYNCLINE_CHECK(endpoint.ok());
    endpoint_ = *std::move(endpoint);
  }

  void Obey(const std::string& command) {
    if (absl::StartsWith(command, "connect ")) {
      Connect(command.substr(8));
      Say("connected");
    } else if (absl::StartsWith(command, "flood ")) {
      Connect(command.substr(6));
      flooding_ = true;
    } else if (command == "lanes") {
      Say(std::string("lanes ") + (endpoint_->IsLocal() ? "LOCAL " : "REMOTE ") +
          endpoint_->Describe());
    }
  }

  void Flood() {
    for (; in_flight_ < 8; ++in_flight_) {
      endpoint_->Send(std::as_bytes(std::span("flood", 5)), {Slice::Of(block_)},
                      [this](const absl::Status&) { --in_flight_; });
    }
  }

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Endpoint> endpoint_;
  const Buffer block_ = Buffer::Allocate(size_t{1} << 20);
  bool flooding_ = false;
  int in_flight_ = 0;
};

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  syncline::UcxOptions options;
  options.keepalive = absl::Milliseconds(200);
  if (argc > 1 && std::string(argv[1]) == "network")
    options.reach = syncline::Reach::kNetwork;
  syncline::Peer(options).Run();
  return 0;
}
