// Tests how a machine renews its certificate over real connections, and attempts that
// must fail.
#include "cli/authority/renew.h"

#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/authority/answering_test_util.h"
#include "cli/authority/join.h"
#include "cli/authority/renewal_book.h"
#include "comm/base/failure.h"
#include "comm/base/temp_directory.h"
#include "comm/rpc/authorities.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/channel.h"
#include "comm/rpc/revoked.h"
#include "comm/rpc/status.h"
#include "comm/rpc/tls.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "nlohmann/json.hpp"
#include "proto/join.grpc.pb.h"

namespace syncline::certs {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Json = nlohmann::json;

class Renewing : public testing::Test {
 protected:
  void SetUp() override {
    SilenceGrpcLog();
    std::filesystem::create_directory(folder_.File("ca"));
    authority_ = std::make_unique<Answering>(folder_.File("ca"));
    const JoinToken token = authority_->Token(
        {.who = {Role::kWorker, "bert"}, .until = absl::Now() + absl::Hours(1)});
    const auto joined =
        Join({.token = syncline::Written(token), .directory = folder_.File("m")});
    ASSERT_TRUE(joined.ok()) << joined.status();
    base_ = *joined;
  }

  absl::Status RenewAt(const std::string& base) {
    return Renew({.base = base, .address = authority_->address()});
  }
  // Returns a copy of the pair, as a thief has it.
  std::string CopyOf(const std::string& base, const std::string& name) {
    const std::string folder = folder_.File(name);
    std::filesystem::copy(std::filesystem::path(base).parent_path(), folder);
    return folder + "/worker-bert";
  }
  static CertificateFacts Facts(const std::string& base) {
    return FactsOf(*ParseCertificate(Contents(base + ".crt")));
  }
  PemPair Leaf(const std::string& uri, const std::vector<std::string>& hosts = {},
               absl::Duration left = absl::Hours(1)) {
    const absl::Time now = absl::Now();
    return *Issue(authority_->authority().pair,
                  {.name = "leaf",
                   .uri = uri,
                   .hosts = hosts,
                   .validity = {now - absl::Hours(2), now + left}});
  }
  std::string WriteLeaf(const std::string& name, const PemPair& pair) {
    std::filesystem::create_directory(folder_.File(name));
    std::filesystem::copy(folder_.File("ca/ca.crt"), folder_.File(name + "/ca.crt"));
    const std::string base = folder_.File(name + "/leaf");
    EXPECT_EQ(WritePair(base, pair), absl::OkStatus());
    return base;
  }
  // Sends the request without the checks that a machine makes before.
  absl::Status Ask(const PemPair& pair, const std::string& signed_request,
                   const std::string& request) {
    const std::string fingerprint = authority_->authority().fingerprint;
    v1::RenewRequest message;
    message.set_certificate(pair.certificate);
    message.set_request(request);
    message.set_signature(
        *SignWith(pair.key, RenewalMessage(fingerprint, signed_request)));
    JoinToken where;
    where.authority = fingerprint;
    where.address = authority_->address();
    const auto link = DialAuthority(where, absl::Seconds(20));
    EXPECT_TRUE(link.ok()) << link.status();
    const auto stub = v1::Authority::NewStub(link->channel);
    grpc::ClientContext context;
    v1::CertifyReply reply;
    return FromGrpcStatus(stub->Renew(&context, message, &reply));
  }
  absl::Status Ask(const PemPair& pair) {
    const std::string request = MakeRequest()->request;
    return Ask(pair, request, request);
  }
  static void ExpectDenied(const absl::Status& status, const std::string& why) {
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }

  TempDirectory folder_;
  std::unique_ptr<Answering> authority_;
  std::string base_;
};

constexpr char kBert[] = "spiffe://d/syncline/c/job/bert/role/worker";

TEST_F(Renewing, GivesTheSameNamesAndAsLongAgainForAnotherKey) {
  const std::string old_key = Contents(base_ + ".key");
  const CertificateFacts old = Facts(base_);
  ASSERT_EQ(RenewAt(base_ + ".crt"), absl::OkStatus());
  const CertificateFacts now = Facts(base_);
  EXPECT_NE(now.serial, old.serial);
  EXPECT_NE(Contents(base_ + ".key"), old_key);
  EXPECT_EQ(now.names.uris, old.names.uris);
  EXPECT_EQ(now.until - now.from, old.until - old.from);
  EXPECT_GE(now.until, old.until);
  EXPECT_EQ(CheckTlsOptions({base_ + ".crt", base_ + ".key", folder_.File("m/ca.crt")}),
            absl::OkStatus());
  struct stat found = {};
  ASSERT_EQ(stat((base_ + ".key").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777u, 0600u);
  EXPECT_FALSE(std::filesystem::exists(base_ + ".next.key"));
  EXPECT_EQ(RenewAt(base_), absl::OkStatus()) << "and again";
}

TEST_F(Renewing, KeepsTheHostsOfAServer) {
  const std::string base = WriteLeaf(
      "server", Leaf("spiffe://d/syncline/c/role/server", {"s0.example", "10.0.0.7"}));
  ASSERT_EQ(RenewAt(base), absl::OkStatus());
  EXPECT_THAT(Facts(base).names.hosts, UnorderedElementsAre("s0.example"));
  EXPECT_THAT(Facts(base).addresses, UnorderedElementsAre("10.0.0.7"));
}

// Either the answer was lost, or the machine was killed before it had stored the
// certificate.
TEST_F(Renewing, AMachineThatWasKilledInTheMiddleAsksForTheSameKey) {
  const std::string before = CopyOf(base_, "before");
  const std::string next = MakeRequest()->key;
  ASSERT_EQ(WriteFile({base_ + ".next.key", next, 0600}), absl::OkStatus());
  ASSERT_EQ(WriteFile({before + ".next.key", next, 0600}), absl::OkStatus());
  ASSERT_EQ(RenewAt(base_), absl::OkStatus());
  ASSERT_EQ(RenewAt(before), absl::OkStatus());
  EXPECT_EQ(Contents(before + ".crt"), Contents(base_ + ".crt"));
  EXPECT_EQ(Contents(before + ".key"), next);
}

TEST_F(Renewing, AStolenCertificateThatWasRenewedIsNoticed) {
  const std::string thief = CopyOf(base_, "thief");
  ASSERT_EQ(RenewAt(thief), absl::OkStatus());
  const std::string old = Facts(base_).serial;
  ExpectDenied(RenewAt(base_), "its key was stolen");
  ASSERT_EQ(RenewAt(thief), absl::OkStatus());
  const auto line = LineOf(folder_.File("ca"), old);
  ASSERT_TRUE(line.ok());
  EXPECT_EQ(line->size(), 3U) << "what it was renewed to, and that again";
  EXPECT_EQ(line->front(), *ParseSerial(old));
  EXPECT_EQ(*LineOf(folder_.File("ca"), "A"), std::vector<std::string>{"0A"});
}

TEST_F(Renewing, WhatWasTakenBackIsNotRenewed) {
  ASSERT_EQ(WriteFile({folder_.File("ca/revoked"), Facts(base_).serial + "  stolen\n"}),
            absl::OkStatus());
  ExpectDenied(RenewAt(base_), "was revoked");
  ASSERT_EQ(ReplaceFile({folder_.File("ca/revoked"), "nonsense\n"}), absl::OkStatus());
  EXPECT_THAT(std::string(RenewAt(base_).message()), HasSubstr("is damaged"));
  std::filesystem::remove(folder_.File("ca/revoked"));
  std::filesystem::create_symlink("nowhere", folder_.File("ca/revoked"));
  EXPECT_THAT(std::string(RenewAt(base_).message()), HasSubstr("is damaged"));
}

TEST_F(Renewing, OnlyMembersWhoseCertificateIsValidAreRenewed) {
  ExpectDenied(Ask(Leaf(kBert, {}, -absl::Hours(1))), "is not valid");
  ExpectDenied(Ask(Leaf("", {"a.example"})), "to no member");
  ExpectDenied(Ask(Leaf("spiffe://d/syncline/e/role/server")),
               "to no member of this cluster");
  const PemPair coordinator =
      Leaf("spiffe://d/syncline/c/role/coordinator", {"c.example"});
  ExpectDenied(Ask(coordinator), "on the authority's host");
  const absl::Status early = RenewAt(WriteLeaf("coordinator", coordinator));
  EXPECT_EQ(FailureOf(early), Failure::kUsage) << "said before anybody is asked";
  const absl::Time now = absl::Now();
  const Validity validity = {now - absl::Hours(1), now + absl::Hours(1)};
  const PemPair other = *MakeAuthority({.name = "ca", .validity = validity});
  ExpectDenied(Ask(*Issue(other, {.name = "leaf", .uri = kBert, .validity = validity})),
               "is not valid here");
  ExpectDenied(Ask(authority_->authority().pair), "to no member");
}

TEST_F(Renewing, TheKeyOfTheOldOneMustHaveSigned) {
  const PemPair own = {Contents(base_ + ".crt"), Contents(base_ + ".key")};
  const KeyRequest mine = *MakeRequest();
  ExpectDenied(Ask({own.certificate, mine.key}), "not signed by the key");
  ExpectDenied(Ask(own, mine.request, MakeRequest()->request), "not signed by the key");
  EXPECT_TRUE(absl::IsInvalidArgument(Ask({std::string(10'000, 'x'), own.key})));
  const std::string same = RequestFor(own.key)->request;
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(own, same, same))) << "for another key";
  EXPECT_EQ(Ask(own, mine.request, mine.request), absl::OkStatus());
}

// The machine was killed after it had written the first of the two files.
TEST_F(Renewing, AHalfWrittenPairIsFinished) {
  const PemPair old = {Contents(base_ + ".crt"), Contents(base_ + ".key")};
  ASSERT_EQ(RenewAt(base_), absl::OkStatus());
  const PemPair next = {Contents(base_ + ".crt"), Contents(base_ + ".key")};
  ASSERT_EQ(ReplaceFile({base_ + ".key", old.key, 0600}), absl::OkStatus());
  ASSERT_EQ(WriteFile({base_ + ".next.key", next.key, 0600}), absl::OkStatus());
  ASSERT_EQ(RenewAt(base_), absl::OkStatus());
  EXPECT_EQ(Contents(base_ + ".crt"), next.certificate);
  EXPECT_EQ(Contents(base_ + ".key"), next.key);
  EXPECT_FALSE(std::filesystem::exists(base_ + ".next.key"));
}

TEST_F(Renewing, SeveralThatRenewOnePairWaitForEachOther) {
  std::vector<absl::Status> renewed(4);
  std::vector<std::thread> threads;
  for (absl::Status& one : renewed) {
    threads.emplace_back([&] { one = RenewAt(base_); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(renewed, testing::Each(absl::OkStatus()));
  EXPECT_EQ(CheckTlsOptions({base_ + ".crt", base_ + ".key", folder_.File("m/ca.crt")}),
            absl::OkStatus());
}

TEST_F(Renewing, ALineIsNotRenewedWithoutEnd) {
  const auto until = absl::Now() + absl::Hours(1);
  const auto sign = [&]() -> absl::StatusOr<std::string> {
    return Leaf(kBert).certificate;
  };
  std::string serial = "A";
  for (int i = 0; i < 16; ++i) {
    const auto next =
        RenewOnce(folder_.File("ca"), {.serial = serial, .until = until, .key = "k"},
                  sign, absl::Now());
    ASSERT_TRUE(next.ok()) << next.status();
    serial = FactsOf(*ParseCertificate(*next)).serial;
  }
  const Renewal more = {.serial = serial, .until = until, .key = "k"};
  const auto refused = RenewOnce(folder_.File("ca"), more, sign, absl::Now());
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_TRUE(
      RenewOnce(folder_.File("ca"), more, sign, absl::Now() + absl::Hours(2)).ok());
}

// While an authority is replaced, files contain the old one and the new one.
TEST_F(Renewing, OfSeveralAuthoritiesTheOneThatSignedIsAsked) {
  const absl::Time now = absl::Now();
  const PemPair other = *MakeAuthority(
      {.name = "ca", .validity = {now - absl::Hours(1), now + absl::Hours(1)}});
  const std::string file = folder_.File("m/ca.crt");
  ASSERT_EQ(ReplaceFile({file, other.certificate + Contents(file)}), absl::OkStatus());
  EXPECT_EQ(RenewAt(base_), absl::OkStatus());
}

TEST_F(Renewing, WritesDownWhatBecameOfWhat) {
  const std::string old = Facts(base_).serial;
  const std::string thief = CopyOf(base_, "thief");
  ASSERT_EQ(RenewAt(base_), absl::OkStatus());
  EXPECT_FALSE(RenewAt(thief).ok());
  std::vector<Json> lines;
  for (const auto& line : absl::StrSplit(authority_->audit(), '\n', absl::SkipEmpty())) {
    lines.push_back(Json::parse(std::string(line)));
  }
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1]["msg"], "renewed");
  EXPECT_EQ(lines[1]["before"], old);
  EXPECT_EQ(lines[1]["serial"], Facts(base_).serial);
  EXPECT_EQ(lines[1]["identity"], kBert);
  EXPECT_EQ(lines[2]["msg"], "refused");
  EXPECT_EQ(lines[2]["serial"], old);
}

TEST_F(Renewing, SaysWhatIsWrongWithFilesAndPlaces) {
  EXPECT_EQ(FailureOf(RenewAt(folder_.File("nothing"))), Failure::kUsage);
  ASSERT_EQ(WriteFile({folder_.File("ca/renewals.json"), "{}", 0600}), absl::OkStatus());
  const absl::Status damaged = RenewAt(base_);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("not a valid list of renewals"));
  const std::string address = authority_->address();
  authority_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(Renew({.base = base_, .address = address})));
}

TEST(WhenToRenew, IsWithAThirdLeftOrALittleMore) {
  const absl::Time from = absl::FromUnixSeconds(1'800'000'000);
  const absl::Time until = from + kBackdated + absl::Hours(24);
  for (const char* serial : {"0A", "0B", "17", "FFFF"}) {
    const absl::Time when = WhenToRenew(from, until, serial);
    EXPECT_LE(when, until - absl::Hours(8));
    EXPECT_GE(when, until - absl::Hours(10));
  }
  EXPECT_NE(WhenToRenew(from, until, "0A"), WhenToRenew(from, until, "0B"));
}

}  // namespace
}  // namespace syncline::certs
