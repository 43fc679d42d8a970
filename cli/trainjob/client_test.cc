#include "cli/trainjob/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "cli/trainjob/trainjob_test_util.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// More than any answer takes, on any machine.
constexpr absl::Duration kPatience = absl::Minutes(1);

std::string Error(TrainJobClient& client, absl::Duration limit = kPatience) {
  const absl::Status failed = client.Post("{}", limit);
  EXPECT_FALSE(failed.ok());
  EXPECT_THAT(std::string(failed.message()), Not(HasSubstr("secret")));
  return std::string(failed.message());
}

TEST(TrainJobClient, PostsWithTheTokenOfTheMoment) {
  TrainJobServer server;
  TrainJobClient client(server.target());
  EXPECT_EQ(client.Post("{\"a\":1}", kPatience), absl::OkStatus());
  server.WriteToken("newer");
  EXPECT_EQ(client.Post("{\"a\":2}", kPatience), absl::OkStatus());
  EXPECT_THAT(server.bodies(), ElementsAre("{\"a\":1}", "{\"a\":2}"));
  EXPECT_THAT(server.tokens(), ElementsAre("Bearer secret", "Bearer newer"));
}

TEST(TrainJobClient, SaysWhatThePeerAnswers) {
  int status = 403;
  TrainJobServer server([&](const httplib::Request&, httplib::Response& out) {
    out.status = status;
    out.set_content(R"({"kind":"Status","message":"Forbidden\u001b[2J"})",
                    "application/json");
    out.set_header("Retry-After", "17");
  });
  TrainJobClient client(server.target());
  EXPECT_THAT(Error(client), AllOf(HasSubstr("HTTP 403, Forbidden\\x1b[2J"),
                                   HasSubstr("KUBEFLOW_TRAINER_SERVER_TOKEN")));
  status = 503;
  absl::Duration wait;
  EXPECT_FALSE(client.Post("{}", kPatience, &wait).ok());
  EXPECT_EQ(wait, absl::Seconds(17));
  status = 307;
  EXPECT_THAT(Error(client), HasSubstr("HTTP 307"));
}

TEST(TrainJobClient, TrustsOnlyItsAuthority) {
  TrainJobServer server;
  TrainJobClient stranger(server.target("other"));
  EXPECT_THAT(Error(stranger), HasSubstr("not vouched for by"));
  TrainJobClient without(server.target("missing"));
  EXPECT_THAT(Error(without), HasSubstr("cannot be read"));
  EXPECT_TRUE(server.tokens().empty()) << "the token was not sent";
}

TEST(TrainJobClient, NeedsAToken) {
  TrainJobServer server;
  server.WriteToken("");
  TrainJobClient client(server.target());
  EXPECT_THAT(Error(client), HasSubstr("is empty"));
}

// TrainJobTarget::From refuses this port. The HTTP library throws at it.
TEST(TrainJobClient, ReportsWhatTheLibraryThrows) {
  TrainJobServer server;
  TrainJobTarget target = server.target();
  target.origin = "https://127.0.0.1:99999999999";
  TrainJobClient client(target);
  EXPECT_THAT(Error(client), HasSubstr("127.0.0.1:99999999999: sto"));
}

TEST(TrainJobClient, GivesUpOnAPeerThatDoesNotAnswer) {
  absl::Notification end;
  TrainJobServer server([&](const httplib::Request&, httplib::Response&) {
    end.WaitForNotificationWithTimeout(kPatience);
  });
  TrainJobClient client(server.target());
  EXPECT_THAT(Error(client, absl::Milliseconds(300)),
              HasSubstr("no answer within 300ms"));
  end.Notify();
}

TEST(TrainJobClient, IsCutWhileItWaits) {
  absl::Notification asked, end;
  TrainJobServer server([&](const httplib::Request&, httplib::Response&) {
    if (!asked.HasBeenNotified()) asked.Notify();
    end.WaitForNotificationWithTimeout(kPatience);
  });
  TrainJobClient client(server.target());
  absl::Status result;
  std::thread posts([&] { result = client.Post("{}", 10 * kPatience); });
  asked.WaitForNotification();
  client.Cut();
  posts.join();
  EXPECT_TRUE(absl::IsCancelled(result)) << result;
  EXPECT_TRUE(absl::IsCancelled(client.Post("{}", kPatience)));
  end.Notify();
}

TEST(TrainJobClient, RefusesEndlessAnswers) {
  TrainJobServer server([](const httplib::Request&, httplib::Response& out) {
    out.set_content(std::string(1 << 20, 'x'), "text/plain");
  });
  TrainJobClient client(server.target());
  EXPECT_THAT(Error(client), HasSubstr("the connection broke"));
}

}  // namespace
}  // namespace syncline
