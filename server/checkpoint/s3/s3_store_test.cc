// S3Store against a fake server: the BlobStore contract, and faults of the server and of
// the network.
#include "server/checkpoint/s3/s3_store.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <span>
#include <stop_token>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "comm/base/failure.h"
#include "comm/base/unique_fd.h"
#include "gmock/gmock.h"
#include "server/checkpoint/blob_store_contract.h"
#include "server/checkpoint/s3/fake_s3_test_util.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kPart = 65536;

// No pauses between attempts, so that no test waits.
S3StoreOptions Hasty() {
  return {.client = {.attempt = absl::Seconds(20), .pause = [](absl::Duration) {}},
          .part_bytes = kPart};
}

class Bucket final : public BlobPlace {
 public:
  std::unique_ptr<BlobStore> Open() override {
    return *OpenS3Store(server_.Settings(), Hasty());
  }

 private:
  FakeS3 server_;
};

INSTANTIATE_TEST_SUITE_P(S3, BlobStoreContract,
                         testing::Values([] { return std::make_unique<Bucket>(); }));

ByteView BytesOf(const std::string& text) { return std::as_bytes(std::span(text)); }

absl::Status Write(BlobStore& store, const std::string& name, const std::string& text) {
  const auto writer = store.Create(name, 0);
  if (!writer.ok()) return writer.status();
  const absl::Status appended = (*writer)->Append(BytesOf(text));
  return appended.ok() ? (*writer)->Finish({}) : appended;
}

absl::Status ReadInto(BlobStore& store, const std::string& name, std::string& text) {
  return store.Read(name, 0, std::as_writable_bytes(std::span(text)));
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// A server that fails a given kind of request a given number of times.
class FaultyS3 : public testing::Test {
 protected:
  FakeS3Hook Counted(FakeS3Hook what) {
    return
        [this, what = std::move(what)](const std::string& asked, httplib::Response& out) {
          if (asked != fails_ || left_ <= 0) return false;
          --left_;
          return what(asked, out);
        };
  }
  void Fail(const std::string& what, int times) {
    fails_ = what;
    left_ = times;
  }
  static FakeS3Hook Refusing(int status, const std::string& code) {
    return [=](const std::string&, httplib::Response& out) {
      return FakeS3::Refuse(out, status, code);
    };
  }
  static std::unique_ptr<BlobStore> Open(const FakeS3& server) {
    auto store = OpenExistingS3Store(server.Settings(), Hasty());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  std::string fails_;
  std::atomic<int> left_ = 0;
  const std::string text_ = std::string(3 * kPart, 'x') + "end";
};

TEST_F(FaultyS3, WhatAServerCannotDoNowIsAskedAgain) {
  for (const auto& [status, code] : {std::pair(500, "InternalError"),
                                     {503, "SlowDown"},
                                     {429, "TooManyRequests"},
                                     {400, "RequestTimeout"}}) {
    for (const char* what :
         {"POST begin", "PUT part", "POST upload", "GET list", "GET"}) {
      FakeS3 server({.before = Counted(Refusing(status, code))});
      const auto store = Open(server);
      Fail(what, 3);
      EXPECT_TRUE(Write(*store, "job/part", text_).ok()) << what << status;
      EXPECT_EQ(store->List("job")->size(), 1u) << what << status;
      std::string text(text_.size(), ' ');
      EXPECT_TRUE(ReadInto(*store, "job/part", text).ok()) << what << status;
      EXPECT_EQ(text, text_);
      EXPECT_EQ(left_, 0) << what << " was not asked for";
    }
  }
}

TEST_F(FaultyS3, AServerThatIsDownIsGivenUpWithAWordOnHowOftenItWasAsked) {
  FakeS3 server({.before = Counted(Refusing(503, "SlowDown"))});
  const auto store = Open(server);
  Fail("PUT", 1000);
  const absl::Status failed = Write(*store, "job/part", "small");
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      Message(failed),
      AllOf(HasSubstr("PUT s3://models/night/7/job/part at http"),
            HasSubstr("HTTP 503 SlowDown (no & no)"), HasSubstr("asked 32 times")));
}

TEST_F(FaultyS3, AnAnswerThatIsLostIsNoSecondTry) {
  // The server carries out the request, but the client receives an error.
  FakeS3 server({.after = Counted(Refusing(500, "InternalError"))});
  const auto store = Open(server);
  for (const char* what : {"PUT", "POST upload", "PUT part", "DELETE"}) {
    Fail(what, 1);
    EXPECT_TRUE(store->Claim(absl::StrCat("job/run", what)).ok()) << what;
    EXPECT_TRUE(Write(*store, "job/part", text_).ok()) << what;
    EXPECT_TRUE(store->Delete("job/part").ok()) << what;
    EXPECT_EQ(left_, 0) << what << " was not asked for";
  }
  Fail("PUT", 1);
  const absl::Status second = store->Claim("job/runDELETE");
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists) << second;
}

TEST_F(FaultyS3, AnErrorInAnAnswerThatBeganWellIsOne) {
  FakeS3 server({.before = Counted([](const std::string&, httplib::Response& out) {
                   FakeS3::Refuse(out, 200, "InternalError");
                   return true;
                 })});
  const auto store = Open(server);
  Fail("POST upload", 2);
  EXPECT_TRUE(Write(*store, "job/part", text_).ok());
  EXPECT_EQ(left_, 0);
  Fail("POST upload", 1000);
  EXPECT_FALSE(Write(*store, "job/other", text_).ok());
  EXPECT_THAT(server.Keys(), ElementsAre("night/7/job/part"));
  EXPECT_EQ(server.Uploads(), 0u) << "it was not given up";
}

FakeS3Hook Welcoming() {
  return [](const std::string&, httplib::Response& out) {
    out.status = 200;
    out.set_content("<html>Welcome to our router</html>", "text/html");
    return true;
  };
}

TEST_F(FaultyS3, AnEndOfAnUploadThatNobodyConfirmsIsLookedAt) {
  {
    FakeS3 server({.after = Counted(Welcoming())});
    const auto store = Open(server);
    Fail("POST upload", 1);
    EXPECT_TRUE(Write(*store, "job/part", text_).ok()) << "it is there";
    EXPECT_EQ(left_, 0);
  }
  FakeS3 server({.before = Counted(Welcoming())});
  const auto store = Open(server);
  Fail("POST upload", 1);
  const absl::Status failed = Write(*store, "job/part", text_);
  EXPECT_EQ(failed.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(failed),
              HasSubstr("Welcome to our router</html>', but the object is not there"));
  EXPECT_THAT(server.Keys(), ElementsAre());
}

TEST_F(FaultyS3, APartThatTheServerLostMakesNoBlob) {
  FakeS3 server;
  const auto store = Open(server);
  auto writer = *store->Create("job/part", 0);
  ASSERT_TRUE(writer->Append(BytesOf(text_)).ok());
  server.LosePart(2);
  const absl::Status failed = writer->Finish({});
  EXPECT_THAT(Message(failed), HasSubstr("HTTP 400 InvalidPart"));
  writer.reset();
  EXPECT_THAT(server.Keys(), ElementsAre());
  EXPECT_EQ(server.Uploads(), 0u);
}

TEST_F(FaultyS3, ABodyThatIsCutOffIsReadAgain) {
  FakeS3 server({.before = Counted([](const std::string&, httplib::Response& out) {
                   out.status = 206;
                   out.set_content_provider(
                       1000, "application/octet-stream",
                       [](size_t offset, size_t, httplib::DataSink& sink) {
                         if (offset > 0) return false;
                         return sink.write(std::string(100, '?').data(), 100);
                       });
                   return true;
                 })});
  const auto store = Open(server);
  ASSERT_TRUE(Write(*store, "job/part", std::string(1000, 'y')).ok());
  Fail("GET", 2);
  std::string text(1000, ' ');
  ASSERT_TRUE(ReadInto(*store, "job/part", text).ok());
  EXPECT_EQ(text, std::string(1000, 'y'));
  EXPECT_EQ(left_, 0);
}

TEST_F(FaultyS3, AServerThatDoesNotKnowRangesIsReadAllTheSame) {
  FakeS3 server;
  server.knows_ranges = false;
  const auto store = Open(server);
  ASSERT_TRUE(Write(*store, "job/part", "0123456789").ok());
  for (const auto& [offset, expected] : {std::pair(0, "012"), {4, "456"}, {7, "789"}}) {
    std::string text(3, ' ');
    EXPECT_TRUE(
        store->Read("job/part", offset, std::as_writable_bytes(std::span(text))).ok());
    EXPECT_EQ(text, expected);
  }
  std::string text(3, ' ');
  EXPECT_EQ(store->Read("job/part", 8, std::as_writable_bytes(std::span(text))).code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(FaultyS3, AServerThatStandsStillIsAskedAgain) {
  absl::Notification over;
  FakeS3 server({.before = Counted([&](const std::string&, httplib::Response&) {
                   over.WaitForNotification();
                   return false;
                 })});
  S3StoreOptions options = Hasty();
  const auto fine = Open(server);
  ASSERT_TRUE(Write(*fine, "job/part", "abc").ok());
  options.client.attempt = absl::Milliseconds(200);
  const auto store = OpenExistingS3Store(server.Settings(), options);
  ASSERT_TRUE(store.ok()) << store.status();
  Fail("GET", 1);
  std::string text(3, ' ');
  EXPECT_TRUE(ReadInto(**store, "job/part", text).ok());
  EXPECT_EQ(text, "abc");
  EXPECT_EQ(left_, 0);
  over.Notify();
}

TEST_F(FaultyS3, AListComesInPages) {
  FakeS3 server;
  server.page = 3;
  const auto store = Open(server);
  std::vector<std::string> names;
  for (int i = 0; i < 10; ++i) {
    names.push_back(absl::StrCat("job/a b+%", i));
    ASSERT_TRUE(Write(*store, names.back(), "x").ok());
  }
  const auto listed = store->List("job");
  ASSERT_TRUE(listed.ok()) << listed.status();
  std::vector<std::string> found;
  for (const Blob& blob : *listed) found.push_back(blob.name);
  EXPECT_EQ(found, names);
  const auto asked = server.Asked();
  EXPECT_EQ(std::ranges::count(asked, "GET list"), 1 + 4) << "one at the start";
}

TEST_F(FaultyS3, AProcessThatEndsDoesNotWaitForAServerThatIsDown) {
  absl::Notification asked;
  FakeS3 server({.before = Counted([&](const std::string&, httplib::Response& out) {
                   if (!asked.HasBeenNotified()) asked.Notify();
                   out.set_header("Retry-After", "20");
                   return FakeS3::Refuse(out, 503, "SlowDown");
                 })});
  S3StoreOptions options = Hasty();
  options.client.pause = nullptr;  // uses the real pause, which would be 20 s each time
  std::stop_source hurry;
  options.client.hurry = hurry.get_token();
  const auto store = *OpenExistingS3Store(server.Settings(), options);
  Fail("PUT", 1000);
  std::thread writer([&] {
    EXPECT_FALSE(Write(*store, "job/part", "small").ok());
    EXPECT_FALSE(store->Claim("job/run1.claimed").ok());
  });
  asked.WaitForNotification();
  hurry.request_stop();
  writer.join();
  // The first request may have been cut while its answer was on the way.
  EXPECT_GE(left_, 997) << "each is asked for once";
  EXPECT_TRUE(Write(*store, "job/large", text_).ok()) << "what works is done";
}

// Without the cut each of these attempts would take ten minutes.
S3StoreOptions Patient(std::stop_token hurry) {
  return {.client = {.patience = absl::Minutes(10),
                     .attempt = absl::Minutes(10),
                     .connect = absl::Minutes(10),
                     .hurry = std::move(hurry)}};
}

TEST_F(FaultyS3, AProcessThatEndsDoesNotWaitForAServerThatIsSilent) {
  absl::Notification asked;
  absl::Notification over;
  FakeS3 server({.before = Counted([&](const std::string&, httplib::Response&) {
                   if (!asked.HasBeenNotified()) asked.Notify();
                   over.WaitForNotification();
                   return false;
                 })});
  std::stop_source hurry;
  const auto store = *OpenS3Store(server.Settings(), Patient(hurry.get_token()));
  Fail("PUT", 1000);
  std::thread writer([&] {
    const absl::Status failed = Write(*store, "job/part", "small");
    EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  });
  asked.WaitForNotification();
  hurry.request_stop();
  writer.join();
  EXPECT_EQ(left_, 998) << "what is cut is asked once more";
  left_ = 0;
  over.Notify();
  EXPECT_TRUE(Write(*store, "job/part", "small").ok()) << "what works is done";
}

// A port whose queue of connections is full, so that the next connect() waits: with a
// backlog of 0 the system accepts one or two connections, and this class opens four.
class FullPort {
 public:
  FullPort() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* name = reinterpret_cast<sockaddr*>(&address_);
    socklen_t size = sizeof(address_);
    EXPECT_EQ(bind(listener_.get(), name, size), 0);
    EXPECT_EQ(listen(listener_.get(), 0), 0);
    EXPECT_EQ(getsockname(listener_.get(), name, &size), 0);
    for (UniqueFd& waiting : waiting_) {
      waiting = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      (void)connect(waiting.get(), name, size);
    }
  }
  int port() const { return ntohs(address_.sin_port); }
  // Returns the number of connections that wait, those of this class included.
  int Waiting() const {
    const std::string to = absl::StrFormat("0100007F:%04X 02", port());
    std::ifstream table("/proc/net/tcp");
    int waiting = 0;
    for (std::string line; std::getline(table, line);) {
      if (absl::StrContains(line, to)) ++waiting;
    }
    return waiting;
  }

 private:
  sockaddr_in address_ = {};
  UniqueFd listener_;
  std::array<UniqueFd, 4> waiting_;
};

TEST_F(FaultyS3, AProcessThatEndsDoesNotWaitForAConnection) {
  const FullPort nobody;
  FakeS3 server;
  S3Settings settings = server.Settings();
  settings.origin = absl::StrCat("http://127.0.0.1:", nobody.port());
  std::stop_source hurry;
  S3Client client(settings, Patient(hurry.get_token()).client);
  const int before = nobody.Waiting();
  std::thread asker([&] {
    EXPECT_EQ(FailureOf(client.Do({.method = "HEAD"}).status()), Failure::kUnreachable);
  });
  while (nobody.Waiting() == before) std::this_thread::yield();
  hurry.request_stop();
  asker.join();
}

TEST_F(FaultyS3, WhatMayNotBeDoneIsNotAskedAgainAndSaysWhatMay) {
  FakeS3 server({.before = Counted(Refusing(403, "AccessDenied"))});
  const auto store = Open(server);
  Fail("PUT", 1000);
  const absl::Status refused = Write(*store, "job/part", "x");
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(Message(refused),
              AllOf(HasSubstr("the key in AWS_ACCESS_KEY_ID may not do that"),
                    HasSubstr("s3:PutObject"), Not(HasSubstr("AKIDEXAMPLE"))));
  EXPECT_EQ(left_, 999);
}

TEST_F(FaultyS3, TheRightRegionIsNamed) {
  FakeS3 server({.before = Counted([](const std::string&, httplib::Response& out) {
                   out.set_header("x-amz-bucket-region", "eu-west-1");
                   return FakeS3::Refuse(out, 301, "PermanentRedirect");
                 })});
  Fail("GET list", 1);
  const auto store = OpenExistingS3Store(server.Settings(), Hasty());
  EXPECT_EQ(FailureOf(store.status()), Failure::kUsage);
  EXPECT_THAT(Message(store.status()),
              HasSubstr("in region eu-west-1, but requests are for us-east-1; set "
                        "AWS_REGION=eu-west-1"));
}

TEST_F(FaultyS3, AServerThatOverwritesInSpiteOfAConditionIsRefused) {
  FakeS3 server;
  server.knows_if_none_match = false;
  const auto store = OpenS3Store(server.Settings(), Hasty());
  EXPECT_EQ(FailureOf(store.status()), Failure::kUsage);
  EXPECT_THAT(Message(store.status()), HasSubstr("in spite of If-None-Match: *"));
  EXPECT_THAT(server.Keys(), ElementsAre()) << "what was tried stays behind";
}

TEST_F(FaultyS3, AServerThatDoesNotKnowTheConditionIsRefused) {
  FakeS3 server({.before = Counted(Refusing(501, "NotImplemented"))});
  Fail("PUT", 1);
  const auto store = OpenS3Store(server.Settings(), Hasty());
  EXPECT_THAT(Message(store.status()),
              AllOf(HasSubstr("501 NotImplemented"),
                    HasSubstr("does not support If-None-Match: *")));
  EXPECT_EQ(server.Asked().size(), 2u) << "501 is no reason to ask again";
}

TEST_F(FaultyS3, AConflictOfConditionsIsAskedAgain) {
  FakeS3 server({.before = Counted(Refusing(409, "ConditionalRequestConflict"))});
  const auto store = Open(server);
  Fail("PUT", 1);
  EXPECT_TRUE(store->Claim("job/run1.claimed").ok());
  EXPECT_EQ(left_, 0);
}

TEST_F(FaultyS3, WhatIsWrongWithABucketShowsAtTheStart) {
  FakeS3 server;
  S3Settings other = server.Settings();
  other.root = "/others";
  const auto missing = OpenS3Store(other, Hasty());
  EXPECT_EQ(FailureOf(missing.status()), Failure::kUsage);
  EXPECT_THAT(Message(missing.status()), HasSubstr("NoSuchBucket"));
  S3Settings forged = server.Settings();
  forged.credentials.secret = "wrong";
  EXPECT_THAT(Message(OpenS3Store(forged, Hasty()).status()),
              AllOf(HasSubstr("AWS_SECRET_ACCESS_KEY is not that of AWS_ACCESS_KEY_ID"),
                    Not(HasSubstr("AKIDEX"))));
  S3Settings nobody = server.Settings();
  nobody.origin = "http://127.0.0.1:1";
  const auto silent = OpenS3Store(nobody, Hasty());
  EXPECT_EQ(FailureOf(silent.status()), Failure::kUnreachable);
  EXPECT_THAT(Message(silent.status()),
              AllOf(HasSubstr("http://127.0.0.1:1"), HasSubstr("asked 32 times")));
}

TEST_F(FaultyS3, WhatIsNoAnswerOfS3IsSaidToBeNone) {
  FakeS3 server({.before = Counted([](const std::string&, httplib::Response& out) {
                   out.set_content("<html>Welcome to our router</html>", "text/html");
                   return true;
                 })});
  Fail("GET list", 1);
  EXPECT_THAT(Message(OpenExistingS3Store(server.Settings(), Hasty()).status()),
              HasSubstr("Welcome to our router</html>'; check the endpoint"));
}

TEST_F(FaultyS3, WhatIsSmallTakesOneRequestAndTheRestOneForEachPart) {
  FakeS3 server;
  const auto store = Open(server);
  ASSERT_TRUE(Write(*store, "job/small", std::string(kPart, 'x')).ok());
  auto writer = *store->Create("job/large", kPart + 1);
  ASSERT_TRUE(writer->Append(BytesOf(text_)).ok());
  ASSERT_TRUE(writer->Finish(BytesOf(std::string(kPart + 1, 'h'))).ok());
  // The head fills two parts, and they are sent last.
  EXPECT_THAT(server.Asked(),
              ElementsAre("GET list", "PUT", "POST begin", "PUT part", "PUT part",
                          "PUT part", "PUT part", "PUT part", "POST upload"));
}

}  // namespace
}  // namespace syncline
