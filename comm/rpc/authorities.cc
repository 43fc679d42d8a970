#include "comm/rpc/authorities.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/freer.h"
#include "comm/rpc/tls.h"

namespace syncline {
namespace {

void FreeStack(STACK_OF(X509) * stack) { sk_X509_pop_free(stack, X509_free); }

using Bio = std::unique_ptr<BIO, Freer<BIO_free_all>>;
using Stack = std::unique_ptr<STACK_OF(X509), Freer<FreeStack>>;
using Store = std::unique_ptr<X509_STORE, Freer<X509_STORE_free>>;
using Context = std::unique_ptr<X509_STORE_CTX, Freer<X509_STORE_CTX_free>>;

// Parses all certificates of a file. Fails with InvalidArgument if one is damaged or cut
// off, or if there is none.
absl::StatusOr<Stack> ParseAll(const std::string& pem) {
  Stack all(sk_X509_new_null());
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  ERR_clear_error();
  while (X509* const next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    sk_X509_push(all.get(), next);
  }
  const bool is_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!is_end) return absl::InvalidArgumentError("one of its certificates is damaged");
  if (sk_X509_num(all.get()) == 0) {
    return absl::InvalidArgumentError("it holds no certificate");
  }
  return all;
}

}  // namespace

absl::Status VerifyChain(const std::string& chain, const std::string& authorities,
                         absl::Time now) {
  SYNCLINE_ASSIGN_OR_RETURN(const Stack shown, ParseAll(chain));
  SYNCLINE_ASSIGN_OR_RETURN(const Stack trusted, ParseAll(authorities));
  const Store store(X509_STORE_new());
  for (int i = 0; i < sk_X509_num(trusted.get()); ++i) {
    X509_STORE_add_cert(store.get(), sk_X509_value(trusted.get(), i));
  }
  const Context context(X509_STORE_CTX_new());
  X509* const leaf = sk_X509_value(shown.get(), 0);
  if (X509_STORE_CTX_init(context.get(), store.get(), leaf, shown.get()) != 1) {
    ERR_clear_error();
    return absl::InternalError("OpenSSL cannot verify a chain");
  }
  // The same flags as in gRPC's handshakes: an intermediate authority can be trusted
  // without its root.
  X509_STORE_CTX_set_flags(context.get(),
                           X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
  const bool is_good = X509_verify_cert(context.get()) == 1;
  const int error = X509_STORE_CTX_get_error(context.get());
  ERR_clear_error();
  if (is_good) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat(
      "signed by '", Printable(FactsOf(*leaf).issuer), "', which is not trusted (",
      X509_verify_cert_error_string(error), ")"));
}

absl::StatusOr<std::unique_ptr<Authorities>> Authorities::Open(
    AuthoritiesOptions options) {
  std::unique_ptr<Authorities> self(new Authorities(std::move(options)));
  absl::MutexLock lock(&self->looking_);
  self->file_.HasChanged();
  if (const absl::Status read = self->Read(); !read.ok()) {
    return WithFailure(absl::InvalidArgumentError(absl::StrCat(
                           "--tls-ca '", self->options_.path, "', ", read.message())),
                       Failure::kUsage);
  }
  return self;
}

absl::Status Authorities::Check(PeerProof& proof) {
  if (file_.IsDue() && looking_.TryLock()) {
    LookAgain();
    looking_.Unlock();
  }
  const std::shared_ptr<const Version> latest = Latest();
  if (proof.believed_by_ == latest->number) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(VerifyChain(proof.chain_, latest->pem, absl::Now()));
  proof.believed_by_ = latest->number;
  return absl::OkStatus();
}

absl::Status Authorities::Read() {
  SYNCLINE_ASSIGN_OR_RETURN(std::string pem, ReadTlsFile(options_.path, "--tls-ca"));
  SYNCLINE_RETURN_IF_ERROR(ParseAll(pem).status());
  absl::MutexLock lock(&mutex_);
  const uint64_t last = latest_ == nullptr ? 0 : latest_->number;
  latest_ = std::make_shared<const Version>(Version{last + 1, std::move(pem)});
  return absl::OkStatus();
}

void Authorities::LookAgain() {
  if (!file_.HasChanged()) return;
  const absl::Status read = Read();
  if (read.ok()) {
    options_.log.Info("read the list of trusted authorities", {{"file", options_.path}});
    return;
  }
  options_.log.Error(
      "the file of authorities cannot be used: its previous content stays in force",
      {{"file", options_.path}, {"reason", std::string(read.message())}});
}

std::shared_ptr<const Authorities::Version> Authorities::Latest() const {
  absl::MutexLock lock(&mutex_);
  return latest_;
}

}  // namespace syncline
