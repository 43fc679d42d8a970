#include "server/admin/http_loop.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "comm/rpc/address.h"
#include "comm/rpc/certificates_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/admin/tls_client_test_util.h"

namespace syncline {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kProbe[] = "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n";

HttpPage OnLoop(std::string body) {
  return {.make = [body = std::move(body)] { return HttpReply{.body = body}; }};
}

class HttpLoopTest : public testing::Test {
 protected:
  HttpLoopTest() { options_.pages["/livez"] = OnLoop("alive\n"); }

  void Start() {
    HostPort address = {"127.0.0.1", 0};
    auto listener = Listen(address);
    ASSERT_TRUE(listener.ok()) << listener.status();
    port_ = address.port;
    auto loop = HttpLoop::Start(*std::move(listener), options_);
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
  }

  UniqueFd Connect() const {
    UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address),
                      sizeof(address)),
              0);
    return client;
  }

  // Returns false if the connection was closed.
  static bool TrySend(const UniqueFd& client, std::string_view bytes) {
    return send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }

  static void Send(const UniqueFd& client, std::string_view bytes) {
    EXPECT_TRUE(TrySend(client, bytes));
  }

  // Reads until the server closes the connection.
  static std::string ReadAll(const UniqueFd& client) {
    std::string text;
    char bytes[4096];
    ssize_t got = 0;
    while ((got = recv(client.get(), bytes, sizeof(bytes), 0)) > 0) {
      text.append(bytes, static_cast<size_t>(got));
    }
    return text;
  }

  std::string Ask(std::string_view request) const {
    const UniqueFd client = Connect();
    Send(client, request);
    return ReadAll(client);
  }

  HttpLoopOptions options_;
  uint16_t port_ = 0;
  std::unique_ptr<HttpLoop> loop_;
};

TEST_F(HttpLoopTest, AnswersWithLengthAndClose) {
  Start();
  const std::string reply = Ask(kProbe);
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("\r\nContent-Length: 6\r\n"));
  EXPECT_THAT(reply, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_THAT(reply, EndsWith("\r\n\r\nalive\n"));
}

TEST_F(HttpLoopTest, SendsNoBodyForHead) {
  Start();
  const std::string reply = Ask("HEAD /livez HTTP/1.1\r\n\r\n");
  EXPECT_THAT(reply, HasSubstr("\r\nContent-Length: 6\r\n"));
  EXPECT_THAT(reply, EndsWith("\r\n\r\n"));
}

TEST_F(HttpLoopTest, RefusesWhatIsNoPage) {
  options_.max_request_bytes = 200;
  Start();
  EXPECT_THAT(Ask("GET /x HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("POST /livez HTTP/1.1\r\n\r\nbody"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Ask("nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nA: " + std::string(300, 'a')),
              StartsWith("HTTP/1.1 431 "));
}

TEST_F(HttpLoopTest, TakesARequestInPieces) {
  Start();
  const UniqueFd client = Connect();
  for (const char byte : std::string_view(kProbe)) Send(client, {&byte, 1});
  EXPECT_THAT(ReadAll(client), EndsWith("alive\n"));
}

// None of these connections finishes its request: some are silent, some begin a request,
// some ask for a slow page.
TEST_F(HttpLoopTest, AnswersAProbeBesideFiveHundredSlowConnections) {
  absl::Notification probed;
  options_.deadline = absl::Hours(1);
  options_.pages["/slow"] = {.made = HttpPage::Made::kOnSecondThread, .make = [&] {
                               probed.WaitForNotification();
                               return HttpReply{};
                             }};
  Start();
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 500; ++i) {
    slow.push_back(Connect());
    if (i % 3 == 1) TrySend(slow.back(), "GET /livez HTTP/1.1\r\nA: ");
    if (i % 3 == 2) TrySend(slow.back(), "GET /slow HTTP/1.1\r\n\r\n");
  }
  EXPECT_THAT(Ask(kProbe), EndsWith("alive\n"));
  probed.Notify();
  loop_.reset();  // the page may be made once more for the connections that wait
}

TEST_F(HttpLoopTest, ClosesTheOldestOfTooMany) {
  options_.deadline = absl::Hours(1);
  options_.max_connections = 2;
  Start();
  const UniqueFd oldest = Connect();
  const UniqueFd second = Connect();
  const UniqueFd third = Connect();
  EXPECT_EQ(ReadAll(oldest), "");
  Send(third, kProbe);
  EXPECT_THAT(ReadAll(third), EndsWith("alive\n"));
  Send(second, kProbe);
  EXPECT_THAT(ReadAll(second), EndsWith("alive\n"));
}

TEST_F(HttpLoopTest, AnswersAProbeByTlsBesideHandshakesThatStandStill) {
  TestCertificates files;
  files.MakeCa("ca");
  files.MakeLeaf("own", "ca");
  const auto identity = TlsIdentity::Load(files.Identity("own"));
  ASSERT_TRUE(identity.ok()) << identity.status();
  options_.deadline = absl::Hours(1);
  options_.new_session = [&] { return std::make_unique<TlsSession>(**identity); };
  const std::string large(size_t{4} << 20, 'x');
  options_.pages["/large"] = OnLoop(large);
  Start();
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 300; ++i) {
    slow.push_back(Connect());
    // Beginning of a ClientHello.
    if (i % 2 == 1) TrySend(slow.back(), "\x16\x03\x01\x02");
  }
  for (const auto& [request, end] :
       {std::pair(std::string(kProbe), std::string("alive\n")),
        std::pair(std::string("GET /large HTTP/1.1\r\n\r\n"), large)}) {
    const UniqueFd socket = Connect();
    TlsClient client(socket, files.Path("ca.crt"));
    ASSERT_TRUE(client.Connect());
    client.Send(request);
    EXPECT_THAT(client.ReadAll(), EndsWith("\r\n\r\n" + end));
  }
  loop_.reset();
}

// Sending a byte now and then does not extend the deadline.
TEST_F(HttpLoopTest, ClosesAConnectionAtItsDeadline) {
  options_.deadline = absl::Milliseconds(100);
  Start();
  const UniqueFd silent = Connect();
  const UniqueFd dripping = Connect();
  std::atomic<bool> closed = false;
  std::thread drip([&] {
    while (!closed && TrySend(dripping, "G")) std::this_thread::yield();
  });
  EXPECT_EQ(ReadAll(silent), "");
  ReadAll(dripping);
  closed = true;
  drip.join();
}

TEST_F(HttpLoopTest, MakesAPageOnceForAllThatWaitForIt) {
  absl::Notification begun;
  absl::Notification go_on;
  std::atomic<int> made = 0;
  options_.pages["/metrics"] = {.made = HttpPage::Made::kOnSecondThread, .make = [&] {
                                  if (++made == 1) {
                                    begun.Notify();
                                    go_on.WaitForNotification();
                                  }
                                  return HttpReply{.body = std::to_string(made)};
                                }};
  Start();
  const UniqueFd first = Connect();
  Send(first, "GET /metrics HTTP/1.1\r\n\r\n");
  begun.WaitForNotification();
  std::vector<UniqueFd> later;
  for (int i = 0; i < 10; ++i) {
    later.push_back(Connect());
    Send(later.back(), "GET /metrics HTTP/1.1\r\n\r\n");
  }
  // The answer shows that the loop has read the earlier requests.
  EXPECT_THAT(Ask(kProbe), EndsWith("alive\n"));
  go_on.Notify();
  EXPECT_THAT(ReadAll(first), EndsWith("\r\n\r\n1"));
  for (const UniqueFd& client : later)
    EXPECT_THAT(ReadAll(client), EndsWith("\r\n\r\n2"));
}

TEST_F(HttpLoopTest, SendsAPageThatIsLargerThanTheSocketsBuffer) {
  const std::string large(size_t{8} << 20, 'x');
  options_.pages["/large"] = OnLoop(large);
  Start();
  EXPECT_THAT(Ask("GET /large HTTP/1.1\r\n\r\n"), EndsWith("\r\n\r\n" + large));
}

// The parts are numbered. Only the loop's second thread makes them.
class HttpStreamTest : public HttpLoopTest {
 protected:
  HttpStreamTest() {
    options_.stream_period = absl::Milliseconds(5);
    options_.pages["/stream"] = {
        .made = HttpPage::Made::kOnSecondThread,
        .make = [] { return HttpReply{.body = StreamEvent("all", "begin")}; },
        .next =
            [this] {
              return HttpReply{.body = StreamEvent("part", std::to_string(++parts_))};
            }};
  }

  UniqueFd Open() const {
    UniqueFd reader = Connect();
    Send(reader, "GET /stream HTTP/1.1\r\n\r\n");
    return reader;
  }

  // Reads until the text ends with `end`. Returns what there was if the connection ends
  // before.
  static std::string ReadUntil(const UniqueFd& client, const std::string& end) {
    std::string text;
    char byte = 0;
    while (text.find(end) == std::string::npos && recv(client.get(), &byte, 1, 0) == 1) {
      text.push_back(byte);
    }
    return text;
  }

  std::atomic<int> parts_ = 0;
};

TEST_F(HttpStreamTest, BeginsWithAllAndGoesOn) {
  Start();
  const UniqueFd reader = Open();
  const std::string head = ReadUntil(reader, "\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"));
  EXPECT_THAT(head, HasSubstr("\r\nCache-Control: no-store, no-transform\r\n"));
  EXPECT_THAT(head, HasSubstr("\r\nX-Accel-Buffering: no\r\n"));
  EXPECT_THAT(head, Not(HasSubstr("Content-Length")));
  EXPECT_EQ(ReadUntil(reader, "\n\n"), "event: all\ndata: begin\n\n");
  EXPECT_EQ(ReadUntil(reader, "\n\n"), "event: part\ndata: 1\n\n");
  EXPECT_EQ(ReadUntil(reader, "\n\n"), "event: part\ndata: 2\n\n");
}

TEST_F(HttpStreamTest, MakesAPartOnceForAllReadersAndNoneForNobody) {
  Start();
  EXPECT_THAT(Ask(kProbe), EndsWith("alive\n"));
  EXPECT_EQ(parts_, 0);
  {
    std::vector<UniqueFd> readers;
    for (int i = 0; i < 5; ++i) readers.push_back(Open());
    for (const UniqueFd& reader : readers) ReadUntil(reader, "data: begin\n\n");
    // All readers are connected now, and get the same parts.
    const std::string later = absl::StrCat("data: ", parts_ + 10, "\n\n");
    for (const UniqueFd& reader : readers) {
      EXPECT_THAT(ReadUntil(reader, later), EndsWith(later));
    }
  }
  // The loop notices in its next round that there are no readers.
  int before = -1;
  while (before != parts_) {
    before = parts_;
    for (int i = 0; i < 200; ++i) Ask(kProbe);  // takes several periods
  }
}

TEST_F(HttpStreamTest, ServesSoManyAndTellsTheNextToAskLater) {
  options_.max_streams = 3;
  options_.max_connections = 4;
  options_.deadline = absl::Hours(1);
  Start();
  std::vector<UniqueFd> readers;
  for (int i = 0; i < 3; ++i) {
    readers.push_back(Open());
    ReadUntil(readers.back(), "data: begin\n\n");
  }
  const std::string refused = Ask("GET /stream HTTP/1.1\r\n\r\n");
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(refused, HasSubstr("\r\nRetry-After: 30\r\n"));
  // Other connections take no place of a stream, and streams take no place of others.
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 20; ++i) idle.push_back(Connect());
  EXPECT_THAT(Ask(kProbe), EndsWith("alive\n"));
  for (const UniqueFd& reader : readers) {
    EXPECT_THAT(ReadUntil(reader, "\n\n"), StartsWith("event: part\n"));
  }
  // A place that becomes free is given to the next reader.
  readers.pop_back();
  std::string next;
  while (!next.starts_with("HTTP/1.1 200 ")) next = ReadUntil(Open(), "\r\n\r\n");
}

TEST_F(HttpStreamTest, CutsOffAReaderThatDoesNotRead) {
  options_.deadline = absl::Milliseconds(200);
  options_.pages["/stream"].make = [] { return HttpReply{.body = "begin\n\n"}; };
  options_.pages["/stream"].next = [] {
    return HttpReply{.body = std::string(size_t{1} << 20, 'x') + "\n\n"};
  };
  options_.max_streams = 1;
  Start();
  const UniqueFd idle = Open();
  ReadUntil(idle, "begin\n\n");
  // The idle reader is disconnected at some time, and its place goes to a reader that
  // reads.
  UniqueFd reader;
  std::string begin;
  while (!begin.starts_with("HTTP/1.1 200 ")) {
    reader = Open();
    begin = ReadUntil(reader, "\r\n\r\n");
  }
  ReadAll(idle);  // until it is disconnected
}

TEST_F(HttpStreamTest, SaysSomethingWhenNothingIsMade) {
  absl::Notification stop;
  options_.stream_silence = absl::Milliseconds(20);
  options_.pages["/stream"].next = [&] {
    stop.WaitForNotification();
    return HttpReply{};
  };
  Start();
  const UniqueFd reader = Open();
  ReadUntil(reader, "data: begin\n\n");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ReadUntil(reader, "\n\n"), ":\n\n");
  stop.Notify();
  loop_.reset();
}

TEST_F(HttpStreamTest, EndsForAReaderWhoMayReadNoLonger) {
  std::atomic<bool> may_read = true;
  options_.judge = [&](const HttpRequest& request) -> std::optional<HttpReply> {
    EXPECT_EQ(request.authorization, "Bearer x");
    if (may_read) return std::nullopt;
    return HttpReply{.status = 401};
  };
  Start();
  const UniqueFd reader = Connect();
  Send(reader, "GET /stream HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n");
  EXPECT_THAT(ReadUntil(reader, "data: 2\n\n"), EndsWith("data: 2\n\n"));
  may_read = false;
  ReadAll(reader);  // until it is disconnected
  loop_.reset();
}

TEST_F(HttpStreamTest, OfAHeadHasNoEvents) {
  Start();
  EXPECT_THAT(Ask("HEAD /stream HTTP/1.1\r\n\r\n"), EndsWith("\r\n\r\n"));
}

TEST(StreamEventTest, KeepsLinesApart) {
  EXPECT_EQ(StreamEvent("a", "b\nc"), "event: a\ndata: b\ndata: c\n\n");
  EXPECT_EQ(StreamEvent("a", ""), "event: a\ndata: \n\n");
}

TEST_F(HttpLoopTest, StopsWithConnectionsOpen) {
  Start();
  const UniqueFd client = Connect();
  Send(client, "GET ");
  loop_.reset();
  ReadAll(client);
}

}  // namespace
}  // namespace syncline
