#include "server/etcd/etcd_store.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/base/failure.h"
#include "comm/rpc/certificates_test_util.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/server.h"
#include "comm/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/etcd/etcd_test_util.h"
#include "server/etcd/leadership.h"
#include "server/store/state_store_contract.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTtl = absl::Seconds(60);

// The store of a coordinator that leads.
class LeadingStore final : public StateStore {
 public:
  explicit LeadingStore(std::unique_ptr<EtcdClient> etcd, absl::Duration ttl = kTtl)
      : etcd_(std::move(etcd)),
        leadership_(*etcd_, {.address = "a:1", .ttl = ttl}),
        store_(Make()) {}

  absl::StatusOr<std::optional<Versioned>> Load(std::string_view key) override {
    return store_->Load(key);
  }
  absl::StatusOr<int64_t> CompareAndSet(std::string_view key, int64_t expected_version,
                                        std::string_view value) override {
    return store_->CompareAndSet(key, expected_version, value);
  }
  absl::Status Erase(std::string_view key, int64_t expected_version) override {
    return store_->Erase(key, expected_version);
  }
  absl::StatusOr<std::map<std::string, Versioned>> List(
      std::string_view prefix) override {
    return store_->List(prefix);
  }

  EtcdClient& etcd() { return *etcd_; }
  Leadership& leadership() { return leadership_; }

  size_t CountKeys(const std::string& below) {
    etcdserverpb::RangeRequest request;
    request.set_key(etcd_->address().prefix + below);
    request.set_range_end(etcd_->address().prefix + below + "\xff");
    return static_cast<size_t>((*etcd_->Range(request, absl::Seconds(60))).kvs_size());
  }

 private:
  std::unique_ptr<EtcdStore> Make() {
    SYNCLINE_CHECK(Eventually([this] { return leadership_.leads(); }));
    EtcdStoreOptions options;
    options.guard = leadership_.guard();
    // As for a coordinator whose clock has not yet told it that its time is over.
    options.time_left = [] { return kTtl; };
    return std::make_unique<EtcdStore>(*etcd_, std::move(options));
  }

  std::unique_ptr<EtcdClient> etcd_;
  Leadership leadership_;
  std::unique_ptr<EtcdStore> store_;
};

std::unique_ptr<StateStore> MakeInSharedEtcd() {
  static TestEtcd etcd;
  static std::atomic<int> stores = 0;
  return std::make_unique<LeadingStore>(
      etcd.Connect(absl::StrCat("/contract/", stores++)));
}

std::vector<StateStoreFactory> WhereEtcdIsInstalled() {
  if (!TestEtcd::IsInstalled()) return {};
  return {StateStoreFactory(MakeInSharedEtcd)};
}

INSTANTIATE_TEST_SUITE_P(Etcd, StateStoreContract,
                         testing::ValuesIn(WhereEtcdIsInstalled()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StateStoreContract);

class EtcdStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!TestEtcd::IsInstalled()) GTEST_SKIP() << "etcd-server is not installed";
  }
};

TEST_F(EtcdStoreTest, HoldsWhatOneRequestCannotAndLeavesNothingBehind) {
  TestEtcd etcd;
  LeadingStore store(etcd.Connect("/parts"));
  std::string large(3 * EtcdStore::kPartBytes + 17, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 + i / 999);
  ASSERT_EQ(*store.CompareAndSet("job/1", kAbsent, large), 1);
  // The parts of this key must not count as parts of the other one.
  ASSERT_EQ(*store.CompareAndSet("job/1/2", kAbsent, large), 1);
  EXPECT_EQ((*store.Load("job/1"))->value, large);
  EXPECT_EQ(store.List("job/")->at("job/1").value, large);
  EXPECT_EQ(store.CountKeys("/parts/"), 8u);

  std::string other = large;
  other[EtcdStore::kPartBytes] = 'x';
  EXPECT_TRUE(absl::IsAborted(store.CompareAndSet("job/1", 3, other).status()));
  EXPECT_EQ(store.CountKeys("/parts/"), 8u) << "of a change that was refused";
  ASSERT_EQ(*store.CompareAndSet("job/1", 1, other), 2);
  EXPECT_EQ((*store.Load("job/1"))->value, other);
  EXPECT_EQ(store.CountKeys("/parts/"), 8u) << "of the value before";
  ASSERT_EQ(*store.CompareAndSet("job/1", 2, "small"), 3);
  EXPECT_EQ(store.CountKeys("/parts/"), 4u);
  ASSERT_TRUE(store.Erase("job/1/2", 1).ok());
  EXPECT_EQ(store.CountKeys("/parts/"), 0u);
  EXPECT_EQ((*store.Load("job/1"))->value, "small");
}

TEST_F(EtcdStoreTest, ListsMoreThanOneReplyHolds) {
  TestEtcd etcd;
  LeadingStore store(etcd.Connect("/many"));
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(store.CompareAndSet(absl::StrCat("e/", i), kAbsent, "v").ok());
  }
  EXPECT_EQ(store.List("e/")->size(), 100u);
}

// All promises depend on this one: a leader that was replaced stores nothing, even if it
// does not know that it was replaced.
TEST_F(EtcdStoreTest, ALeaderThatWasReplacedStoresNothing) {
  TestEtcd etcd;
  LeadingStore old(etcd.Connect("/fence"));
  ASSERT_EQ(*old.CompareAndSet("coordinator", kAbsent, "term 1"), 1);
  old.leadership().Resign();
  LeadingStore next(etcd.Connect("/fence"));
  for (const auto& status :
       {old.CompareAndSet("coordinator", 1, "term 2 of the old one").status(),
        old.CompareAndSet("job/9", kAbsent, std::string(2 * EtcdStore::kPartBytes, 'x'))
            .status(),
        old.Erase("coordinator", 1)}) {
    EXPECT_EQ(FailureOf(status), Failure::kRetryable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("does not lead any more"));
  }
  EXPECT_EQ(next.CountKeys("/parts/"), 0u);
  EXPECT_EQ(next.List("")->size(), 1u);
  EXPECT_EQ((*next.Load("coordinator"))->value, "term 1");
  EXPECT_EQ(*next.CompareAndSet("coordinator", 1, "term 2"), 2);
}

TEST_F(EtcdStoreTest, NobodyStoresAfterItsTime) {
  TestEtcd etcd;
  LeadingStore leading(etcd.Connect("/time"));
  EtcdStoreOptions options{.guard = leading.leadership().guard(),
                           .time_left = [] { return absl::ZeroDuration(); }};
  EtcdStore store(leading.etcd(), std::move(options));
  EXPECT_EQ(FailureOf(store.CompareAndSet("a", kAbsent, "b").status()),
            Failure::kRetryable);
  EXPECT_FALSE(leading.Load("a")->has_value());
}

TEST_F(EtcdStoreTest, TellsThatAValueIsOfNobodyWeKnow) {
  TestEtcd etcd;
  LeadingStore store(etcd.Connect("/strange"));
  etcdserverpb::TxnRequest write;
  auto* put = write.add_success()->mutable_request_put();
  put->set_key("/strange/state/a");
  put->set_value("hello, I am from elsewhere");
  ASSERT_TRUE(store.etcd().Txn(write, absl::Seconds(60)).ok());
  EXPECT_EQ(FailureOf(store.Load("a").status()), Failure::kStateUnusable);
  EXPECT_THAT(std::string(store.List("").status().message()),
              HasSubstr("written by a newer Syncline, or by something else"));
}

// Passes requests on to a real member, and loses answers.
class LosingEtcd final : public etcdserverpb::KV::Service {
 public:
  explicit LosingEtcd(const std::string& target)
      : stub_(etcdserverpb::KV::NewStub(
            *CreateChannel(target, {}, RpcTimeouts::Default()))) {
    running_ = *StartServer({.listen = "127.0.0.1:0", .tls = {}, .services = {this}});
  }
  ~LosingEtcd() override { running_.Shutdown(absl::ZeroDuration()); }

  void Lose(int answers) { loses_ = answers; }
  void LoseOne() { Lose(1); }
  // Refuses the next reads, like an overloaded etcd.
  void RefuseReads(int reads) { refuses_ = reads; }
  // Sets a function that is called before each read.
  void BeforeReads(std::function<void()> call) { before_read_ = std::move(call); }
  const std::string& address() const { return running_.address; }

  grpc::Status Range(grpc::ServerContext*, const etcdserverpb::RangeRequest* request,
                     etcdserverpb::RangeResponse* reply) override {
    if (before_read_) before_read_();
    if (refuses_.fetch_sub(1) > 0) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "etcdserver: too many requests"};
    }
    grpc::ClientContext context;
    return stub_->Range(&context, *request, reply);
  }
  grpc::Status Txn(grpc::ServerContext*, const etcdserverpb::TxnRequest* request,
                   etcdserverpb::TxnResponse* reply) override {
    grpc::ClientContext context;
    const grpc::Status status = stub_->Txn(&context, *request, reply);
    if (loses_.fetch_sub(1) <= 0) return status;
    return {grpc::StatusCode::UNAVAILABLE, "the connection broke"};
  }

 private:
  std::unique_ptr<etcdserverpb::KV::Stub> stub_;
  std::atomic<int> loses_ = 0;
  std::atomic<int> refuses_ = 0;
  std::function<void()> before_read_;
  RunningServer running_;
};

TEST_F(EtcdStoreTest, KnowsItsOwnChangeWhenTheAnswerIsLost) {
  TestEtcd etcd;
  LeadingStore leading(etcd.Connect("/lost"));
  LosingEtcd losing(etcd.Address("/lost").members[0]);
  const auto client =
      *EtcdClient::Create({{losing.address()}, "/lost"}, {}, absl::Seconds(20));
  EtcdStore store(
      *client, {.guard = leading.leadership().guard(), .time_left = [] { return kTtl; }});
  losing.LoseOne();
  EXPECT_EQ(*store.CompareAndSet("a", kAbsent, "1"), 1);
  losing.LoseOne();
  EXPECT_EQ(*store.CompareAndSet("a", 1, "2"), 2);
  EXPECT_EQ((*store.Load("a"))->value, "2");
  losing.LoseOne();
  EXPECT_TRUE(absl::IsAborted(store.CompareAndSet("a", 1, "3").status()));
  losing.LoseOne();
  EXPECT_TRUE(store.Erase("a", 2).ok());
  EXPECT_FALSE(store.Load("a")->has_value());
}

// As when the lease is renewed while a write waits for etcd.
TEST_F(EtcdStoreTest, WritesForAsLongAsItLeadsAndNotForWhatWasLeftAtFirst) {
  TestEtcd etcd;
  LeadingStore leading(etcd.Connect("/renewed"));
  LosingEtcd losing(etcd.Address("/renewed").members[0]);
  const auto client =
      *EtcdClient::Create({{losing.address()}, "/renewed"}, {}, absl::Seconds(20));
  EtcdStore store(*client, {.guard = leading.leadership().guard(),
                            .time_left = [] { return absl::Seconds(1); }});
  losing.Lose(25);  // with a pause of 0.1 s after each
  const auto stored = store.CompareAndSet("a", kAbsent, "1");
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(*stored, 1);
}

TEST_F(EtcdStoreTest, WithoutAnEtcdEverythingEndsWithItsTime) {
  const DeadEtcd dead;
  const auto client =
      *EtcdClient::Create({{dead.address()}, "/away"}, {}, absl::Milliseconds(50));
  const SteadyClock clock;
  const auto make = [&] {
    const absl::Duration until = clock.Now() + absl::Milliseconds(300);
    EtcdStoreOptions options;
    options.time_left = [&clock, until] { return until - clock.Now(); };
    return EtcdStore(*client, std::move(options));
  };
  for (const absl::Status& status :
       {make().Load("a").status(), make().List("").status(),
        make().CompareAndSet("a", kAbsent, "1").status(), make().Erase("a", 1)}) {
    EXPECT_EQ(FailureOf(status), Failure::kRetryable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("does not lead any more"));
  }
}

TEST_F(EtcdStoreTest, ReadsAgainFromAnEtcdThatHasTooMuchToDo) {
  TestEtcd etcd;
  LeadingStore leading(etcd.Connect("/busy"));
  ASSERT_TRUE(leading.CompareAndSet("a", kAbsent, "1").ok());
  LosingEtcd busy(etcd.Address("/busy").members[0]);
  const auto client =
      *EtcdClient::Create({{busy.address()}, "/busy"}, {}, absl::Seconds(20));
  EtcdStore store(
      *client, {.guard = leading.leadership().guard(), .time_left = [] { return kTtl; }});
  busy.RefuseReads(2);
  const auto loaded = store.Load("a");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->value, "1");
  busy.RefuseReads(2);
  EXPECT_TRUE(store.List("").ok());
}

TEST_F(EtcdStoreTest, ListsAllPagesAsOfTheFirstOne) {
  TestEtcd etcd;
  LeadingStore leading(etcd.Connect("/pages"));
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(leading.CompareAndSet(absl::StrCat("e/", i), kAbsent, "before").ok());
  }
  LosingEtcd passing(etcd.Address("/pages").members[0]);
  int64_t version = 0;
  passing.BeforeReads([&] {
    if (version++ == 0) return;
    EXPECT_EQ(*leading.CompareAndSet("e/9", version - 1, "after"), version);
  });
  const auto client =
      *EtcdClient::Create({{passing.address()}, "/pages"}, {}, absl::Seconds(20));
  EtcdStore store(
      *client, {.guard = leading.leadership().guard(), .time_left = [] { return kTtl; }});
  const auto listed = store.List("e/");
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_GT(version, 2) << "it takes more than two pages";
  EXPECT_EQ(listed->at("e/9").value, "before");
}

// Killing a member may begin an election, and etcd's elections are repeated for as long as
// members do not answer each other within a second. On a machine with many busy processes
// that may take minutes. So the lease outlasts them, a write is tried until it succeeds
// (the store gives up only when `time_left` is over), and a read, which gives up after a
// minute, is tried again.
TEST_F(EtcdStoreTest, OneOfThreeMembersMayDie) {
  constexpr absl::Duration kPatience = absl::Minutes(10);
  TestEtcd etcd({.members = 3});
  LeadingStore store(etcd.Connect("/three"), kPatience);
  for (size_t killed = 0; killed < 3; ++killed) {
    const int64_t version = static_cast<int64_t>(killed) * 2;
    auto stored = store.CompareAndSet("a", version, "before");
    ASSERT_TRUE(stored.ok()) << stored.status();
    ASSERT_EQ(*stored, version + 1);
    etcd.Kill(killed);
    stored = store.CompareAndSet("a", version + 1, "without one");
    ASSERT_TRUE(stored.ok()) << stored.status();
    ASSERT_EQ(*stored, version + 2);
    absl::StatusOr<std::optional<Versioned>> loaded;
    ASSERT_TRUE(Eventually([&] { return (loaded = store.Load("a")).ok(); }))
        << loaded.status();
    EXPECT_EQ((*loaded)->value, "without one");
    etcd.Start(killed);
    // The member must take part again before the next one is killed.
    const auto alone = *EtcdClient::Create(
        {{etcd.Address("/").members[killed]}, "/three"}, {}, absl::Seconds(1));
    etcdserverpb::RangeRequest request;
    request.set_key("/three");
    const auto answered = alone->Range(request, kPatience);
    ASSERT_TRUE(answered.ok()) << answered.status();
  }
}

TEST_F(EtcdStoreTest, SpeaksTlsWithACertificateOfItsOwn) {
  TestCertificates files;
  files.MakeCa("etcd-ca");
  files.MakeCa("other-ca");
  for (const char* leaf : {"etcd", "coordinator"}) {
    files.MakeLeaf(leaf, "etcd-ca", {.uri = "-"});
  }
  const auto identity = [&](const std::string& name, const std::string& ca) {
    return EtcdTls{.ca_file = files.Path(ca + ".crt"),
                   .cert_file = files.Path(name + ".crt"),
                   .key_file = files.Path(name + ".key")};
  };
  TestEtcd etcd({.server = identity("etcd", "etcd-ca"),
                 .client = identity("coordinator", "etcd-ca")});
  LeadingStore store(etcd.Connect("/sealed"));
  EXPECT_EQ(*store.CompareAndSet("a", kAbsent, "1"), 1);
  etcdserverpb::RangeRequest request;
  request.set_key("/sealed");
  for (const EtcdTls& stranger : {EtcdTls{}, identity("coordinator", "other-ca")}) {
    const auto client =
        *EtcdClient::Create(etcd.Address("/sealed"), stranger, absl::Seconds(1));
    EXPECT_TRUE(absl::IsUnavailable(client->Range(request, absl::Seconds(2)).status()));
  }
  EXPECT_EQ(FailureOf(EtcdClient::Create(etcd.Address("/sealed"), {.ca_file = "nowhere"},
                                         absl::Seconds(1))
                          .status()),
            Failure::kUsage);
}

}  // namespace
}  // namespace syncline
