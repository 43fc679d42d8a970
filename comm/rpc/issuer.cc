#include "comm/rpc/issuer.h"

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "comm/base/status.h"
#include "comm/rpc/announcement.h"
#include "comm/rpc/freer.h"

namespace syncline {
namespace {

using Bio = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using Number = std::unique_ptr<BIGNUM, Freer<BN_free>>;
using Address = std::unique_ptr<ASN1_OCTET_STRING, Freer<ASN1_OCTET_STRING_free>>;
using GeneralName = std::unique_ptr<GENERAL_NAME, Freer<GENERAL_NAME_free>>;
using GeneralNames = std::unique_ptr<GENERAL_NAMES, Freer<GENERAL_NAMES_free>>;
using Request = std::unique_ptr<X509_REQ, Freer<X509_REQ_free>>;
using Signing = std::unique_ptr<EVP_MD_CTX, Freer<EVP_MD_CTX_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freer<X509_EXTENSION_free>>;

void FreeBytes(unsigned char* bytes) { OPENSSL_free(bytes); }

constexpr char kCurve[] = "P-256";
constexpr std::string_view kCurveName = "prime256v1";  // OpenSSL's other name for it
constexpr size_t kMaxNameBytes = 64;                   // limit of a common name (X.520)
constexpr size_t kMaxHostBytes = 253;                  // limit of a DNS name
constexpr int kSerialBits = 127;                       // positive, at most 20 bytes

absl::Status Failed(const char* what) {
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("OpenSSL cannot ", what));
}

// Checks a name that is put into the certificate unchanged.
absl::Status CheckAscii(const char* what, const std::string& name, size_t max_bytes) {
  bool is_plain = !name.empty() && name.size() <= max_bytes;
  for (const char c : name) is_plain = is_plain && c > ' ' && c < '\x7f';
  if (is_plain) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, " in a certificate is 1 to ", max_bytes, " ASCII characters without blanks"));
}

template <typename Write>
absl::StatusOr<std::string> ToPem(const Write& write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  char* bytes = nullptr;
  if (bio == nullptr || write(bio.get()) != 1) return Failed("write PEM");
  const long size = BIO_get_mem_data(bio.get(), &bytes);
  return std::string(bytes, static_cast<size_t>(size));
}

bool SetTime(ASN1_TIME* field, absl::Time time) {
  return ASN1_TIME_set(field, absl::ToTimeT(time)) != nullptr;
}

absl::Status SetBasics(X509& certificate, EVP_PKEY& key, const CertificateOrder& order) {
  const Number serial(BN_new());
  auto* const name = reinterpret_cast<const unsigned char*>(order.name.c_str());
  const bool done =
      X509_set_version(&certificate, X509_VERSION_3) == 1 &&
      BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
      BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(&certificate)) != nullptr &&
      X509_NAME_add_entry_by_NID(X509_get_subject_name(&certificate), NID_commonName,
                                 MBSTRING_ASC, name, -1, -1, 0) == 1 &&
      SetTime(X509_getm_notBefore(&certificate), order.validity.from) &&
      SetTime(X509_getm_notAfter(&certificate), order.validity.until) &&
      X509_set_pubkey(&certificate, &key) == 1;
  return done ? absl::OkStatus() : Failed("fill in a certificate");
}

// Adds an extension. `value` is in the syntax of openssl.cnf; no part of it comes from
// outside.
absl::Status AddExtension(X509& certificate, X509& issuer, int id, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, &issuer, &certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, id, value));
  if (extension == nullptr || X509_add_ext(&certificate, extension.get(), -1) != 1) {
    return Failed("add an extension");
  }
  return absl::OkStatus();
}

GeneralName UriName(const std::string& text, int type) {
  GeneralName name(GENERAL_NAME_new());
  ASN1_IA5STRING* const string = ASN1_IA5STRING_new();
  ASN1_STRING_set(string, text.data(), static_cast<int>(text.size()));
  GENERAL_NAME_set0_value(name.get(), type, string);
  return name;
}

GeneralName HostName(const std::string& host) {
  Address address(a2i_IPADDRESS(host.c_str()));
  ERR_clear_error();
  if (address == nullptr) return UriName(host, GEN_DNS);
  GeneralName name(GENERAL_NAME_new());
  GENERAL_NAME_set0_value(name.get(), GEN_IPADD, address.release());
  return name;
}

absl::Status AddNames(X509& certificate, const CertificateOrder& order) {
  const GeneralNames names(GENERAL_NAMES_new());
  if (!order.uri.empty()) {
    sk_GENERAL_NAME_push(names.get(), UriName(order.uri, GEN_URI).release());
  }
  for (const std::string& host : order.hosts) {
    SYNCLINE_RETURN_IF_ERROR(CheckAscii("a host", host, kMaxHostBytes));
    sk_GENERAL_NAME_push(names.get(), HostName(host).release());
  }
  if (sk_GENERAL_NAME_num(names.get()) == 0) return absl::OkStatus();
  if (X509_add1_ext_i2d(&certificate, NID_subject_alt_name, names.get(), 0,
                        X509V3_ADD_DEFAULT) != 1) {
    return Failed("add names");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Sign(X509& certificate, EVP_PKEY& issuer_key) {
  if (X509_sign(&certificate, &issuer_key, EVP_sha256()) == 0) {
    return Failed("sign a certificate");
  }
  return ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, &certificate); });
}

absl::StatusOr<std::string> ToPem(EVP_PKEY& key) {
  return ToPem([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, &key, nullptr, nullptr, 0, nullptr,
                                         nullptr);
  });
}

// Keeps OpenSSL from asking for a passphrase on the terminal.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*rwflag*/, void* /*user*/) {
  return 0;
}

Bio Open(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

absl::StatusOr<Key> ReadKey(const std::string& pem) {
  Key key(PEM_read_bio_PrivateKey(Open(pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError("no private key in PEM that needs no passphrase");
  }
  return key;
}

const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

Key MakeKey() { return Key(EVP_EC_gen(kCurve)); }

// Returns a certificate for `key`, which may be a public key.
absl::StatusOr<std::string> SignLeaf(const PemPair& authority,
                                     const CertificateOrder& order, EVP_PKEY& key) {
  SYNCLINE_RETURN_IF_ERROR(CheckAscii("a name", order.name, kMaxNameBytes));
  const Certificate issuer(
      PEM_read_bio_X509(Open(authority.certificate).get(), nullptr, nullptr, nullptr));
  const Key issuer_key(
      PEM_read_bio_PrivateKey(Open(authority.key).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (issuer == nullptr || issuer_key == nullptr || X509_check_ca(issuer.get()) == 0 ||
      X509_check_private_key(issuer.get(), issuer_key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        "the authority is not the certificate of a CA and its key");
  }
  const Certificate certificate(X509_new());
  if (certificate == nullptr) return Failed("make a certificate");
  X509& leaf = *certificate;
  SYNCLINE_RETURN_IF_ERROR(SetBasics(leaf, key, order));
  X509_set_issuer_name(&leaf, X509_get_subject_name(issuer.get()));
  const char* const usage = order.hosts.empty() ? "clientAuth" : "serverAuth,clientAuth";
  for (const auto& [id, value] : {std::pair(NID_basic_constraints, "critical,CA:FALSE"),
                                  std::pair(NID_key_usage, "critical,digitalSignature"),
                                  std::pair(NID_ext_key_usage, usage),
                                  std::pair(NID_subject_key_identifier, "hash"),
                                  std::pair(NID_authority_key_identifier, "keyid")}) {
    SYNCLINE_RETURN_IF_ERROR(AddExtension(leaf, *issuer, id, value));
  }
  SYNCLINE_RETURN_IF_ERROR(AddNames(leaf, order));
  return Sign(leaf, *issuer_key);
}

// Returns the SHA-256 hash of a public key, in hexadecimal.
absl::StatusOr<std::string> DigestOf(EVP_PKEY& key) {
  unsigned char* bytes = nullptr;
  const int size = i2d_PUBKEY(&key, &bytes);
  if (size <= 0) return Failed("write a public key");
  const std::unique_ptr<unsigned char, Freer<FreeBytes>> owner(bytes);
  const std::string digest =
      Sha256({reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)});
  return absl::BytesToHexString(digest);
}

absl::Status WrongRequest(const char* why) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat("the request for a certificate ", why));
}

// Returns the public key of a request, if the request proves that its maker has the
// private key.
absl::StatusOr<Key> ProvedKey(const std::string& pem) {
  const Request request(
      PEM_read_bio_X509_REQ(Open(pem).get(), nullptr, nullptr, nullptr));
  if (request == nullptr) return WrongRequest("is not a request in PEM");
  Key key(X509_REQ_get_pubkey(request.get()));
  std::array<char, 32> curve = {};
  if (key == nullptr ||
      EVP_PKEY_get_group_name(key.get(), curve.data(), curve.size(), nullptr) != 1 ||
      std::string_view(curve.data()) != kCurveName) {
    return WrongRequest("is not for a P-256 key");
  }
  if (X509_REQ_verify(request.get(), key.get()) != 1) {
    return WrongRequest("is not signed by its own key");
  }
  return key;
}

}  // namespace

absl::StatusOr<PemPair> MakeAuthority(const CertificateOrder& order) {
  SYNCLINE_RETURN_IF_ERROR(CheckAscii("a name", order.name, kMaxNameBytes));
  const Key key = MakeKey();
  const Certificate certificate(X509_new());
  if (key == nullptr || certificate == nullptr) return Failed("make a key");
  X509& ca = *certificate;
  SYNCLINE_RETURN_IF_ERROR(SetBasics(ca, *key, order));
  X509_set_issuer_name(&ca, X509_get_subject_name(&ca));
  for (const auto& [id, value] :
       {std::pair(NID_basic_constraints, "critical,CA:TRUE,pathlen:0"),
        std::pair(NID_key_usage, "critical,keyCertSign,cRLSign"),
        std::pair(NID_subject_key_identifier, "hash")}) {
    SYNCLINE_RETURN_IF_ERROR(AddExtension(ca, ca, id, value));
  }
  SYNCLINE_RETURN_IF_ERROR(AddNames(ca, order));
  PemPair pair;
  SYNCLINE_ASSIGN_OR_RETURN(pair.certificate, Sign(ca, *key));
  SYNCLINE_ASSIGN_OR_RETURN(pair.key, ToPem(*key));
  return pair;
}

absl::StatusOr<PemPair> Issue(const PemPair& authority, const CertificateOrder& order) {
  const Key key = MakeKey();
  if (key == nullptr) return Failed("make a key");
  PemPair pair;
  SYNCLINE_ASSIGN_OR_RETURN(pair.certificate, SignLeaf(authority, order, *key));
  SYNCLINE_ASSIGN_OR_RETURN(pair.key, ToPem(*key));
  return pair;
}

absl::StatusOr<KeyRequest> MakeRequest() {
  const Key key = MakeKey();
  if (key == nullptr) return Failed("make a key");
  SYNCLINE_ASSIGN_OR_RETURN(const std::string pem, ToPem(*key));
  return RequestFor(pem);
}

absl::StatusOr<KeyRequest> RequestFor(const std::string& key) {
  SYNCLINE_ASSIGN_OR_RETURN(const Key own, ReadKey(key));
  const Request request(X509_REQ_new());
  if (request == nullptr || X509_REQ_set_pubkey(request.get(), own.get()) != 1 ||
      X509_REQ_sign(request.get(), own.get(), EVP_sha256()) == 0) {
    return Failed("make a request");
  }
  KeyRequest made = {.key = key, .request = {}};
  SYNCLINE_ASSIGN_OR_RETURN(made.request, ToPem([&](BIO* bio) {
                              return PEM_write_bio_X509_REQ(bio, request.get());
                            }));
  return made;
}

absl::StatusOr<std::string> SignWith(const std::string& key, std::string_view message) {
  SYNCLINE_ASSIGN_OR_RETURN(const Key own, ReadKey(key));
  const Signing signing(EVP_MD_CTX_new());
  size_t size = 0;
  const unsigned char* const bytes = Bytes(message);
  if (signing == nullptr ||
      EVP_DigestSignInit(signing.get(), nullptr, EVP_sha256(), nullptr, own.get()) != 1 ||
      EVP_DigestSign(signing.get(), nullptr, &size, bytes, message.size()) != 1) {
    return Failed("sign with this key; use a P-256 or an RSA key");
  }
  std::string signature(size, '\0');
  if (EVP_DigestSign(signing.get(), reinterpret_cast<unsigned char*>(signature.data()),
                     &size, bytes, message.size()) != 1) {
    return Failed("sign with this key; use a P-256 or an RSA key");
  }
  signature.resize(size);
  return signature;
}

bool IsSignedBy(const x509_st& certificate, std::string_view message,
                std::string_view signature) {
  EVP_PKEY* const key = X509_get0_pubkey(&certificate);
  const Signing checking(EVP_MD_CTX_new());
  const bool is_signed =
      key != nullptr && checking != nullptr &&
      EVP_DigestVerifyInit(checking.get(), nullptr, EVP_sha256(), nullptr, key) == 1 &&
      EVP_DigestVerify(checking.get(), Bytes(signature), signature.size(), Bytes(message),
                       message.size()) == 1;
  ERR_clear_error();
  return is_signed;
}

absl::StatusOr<std::string> Certify(const PemPair& authority,
                                    const CertificateOrder& order,
                                    const std::string& request) {
  SYNCLINE_ASSIGN_OR_RETURN(const Key key, ProvedKey(request));
  return SignLeaf(authority, order, *key);
}

absl::StatusOr<std::string> KeyOfRequest(const std::string& request) {
  SYNCLINE_ASSIGN_OR_RETURN(const Key key, ProvedKey(request));
  return DigestOf(*key);
}

absl::StatusOr<std::string> KeyOfCertificate(const x509_st& certificate) {
  EVP_PKEY* const key = X509_get0_pubkey(&certificate);
  return key == nullptr ? Failed("read a public key") : DigestOf(*key);
}

}  // namespace syncline
