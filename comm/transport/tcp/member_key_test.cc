#include "comm/transport/tcp/member_key.h"

#include <openssl/evp.h>
#include <openssl/kdf.h>

#include <array>
#include <cstring>
#include <set>
#include <string>

#include "comm/transport/tcp/tcp_test_util.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(MemberKey, IdentitiesSurviveTheWireAndOthersAreNone) {
  const MemberIdentity identity = {7, 0xffffffff, 3};
  const std::string bytes = EncodeIdentity(identity);
  EXPECT_EQ(ParseIdentity(bytes), identity);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseIdentity(bytes.substr(0, size)).has_value());
  }
  EXPECT_FALSE(ParseIdentity(bytes + "x").has_value());
  EXPECT_FALSE(ParseIdentity("X" + bytes.substr(1)).has_value());
}

// Compares with OpenSSL's own HKDF.
TEST(MemberKey, IsTheExpansionOfTheWorkersKey) {
  std::string info = "syncline/2 psk";
  for (const uint32_t number : {1, 2, 3, 4, 5}) {
    info.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  const SecretKey worker = KeyOf(9);
  std::array<unsigned char, SecretKey::kBytes> expected;
  size_t size = expected.size();
  EVP_PKEY_CTX* context = EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr);
  ASSERT_EQ(EVP_PKEY_derive_init(context), 1);
  ASSERT_EQ(EVP_PKEY_CTX_hkdf_mode(context, EVP_PKEY_HKDEF_MODE_EXPAND_ONLY), 1);
  ASSERT_EQ(EVP_PKEY_CTX_set_hkdf_md(context, EVP_sha256()), 1);
  ASSERT_EQ(EVP_PKEY_CTX_set1_hkdf_key(
                context, reinterpret_cast<const unsigned char*>(worker.bytes().data()),
                SecretKey::kBytes),
            1);
  ASSERT_EQ(EVP_PKEY_CTX_add1_hkdf_info(
                context, reinterpret_cast<const unsigned char*>(info.data()),
                static_cast<int>(info.size())),
            1);
  ASSERT_EQ(EVP_PKEY_derive(context, expected.data(), &size), 1);
  EVP_PKEY_CTX_free(context);
  const SecretKey derived = DeriveMemberKey(worker, {1, 2, 3}, {4, 5});
  EXPECT_EQ(std::memcmp(derived.bytes().data(), expected.data(), expected.size()), 0);
}

TEST(MemberKey, DiffersForEachLifeOfEitherSide) {
  const SecretKey worker = KeyOf(9);
  std::set<std::string> keys;
  const auto add = [&](const MemberIdentity& who, const ServerIdentity& server) {
    const SecretKey key = DeriveMemberKey(worker, who, server);
    keys.emplace(reinterpret_cast<const char*>(key.bytes().data()), SecretKey::kBytes);
  };
  add({1, 2, 3}, {4, 5});
  add({2, 2, 3}, {4, 5});
  add({1, 1, 3}, {4, 5});
  add({1, 2, 4}, {4, 5});
  add({1, 2, 3}, {5, 5});
  add({1, 2, 3}, {4, 6});
  EXPECT_EQ(keys.size(), 6U);
}

TEST(MemberKey, DrawnKeysDiffer) { EXPECT_FALSE(DrawKey() == DrawKey()); }

}  // namespace
}  // namespace syncline
