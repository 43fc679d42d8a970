#include "cli/authority/answer.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/base/env.h"
#include "comm/base/status.h"
#include "comm/rpc/authorities.h"
#include "comm/rpc/certificate.h"
#include "comm/rpc/channel.h"

namespace syncline::certs {
namespace {

constexpr absl::Duration kAskAgainAfter = absl::Milliseconds(500);

}  // namespace

absl::Status AskAgain(const std::string& address, absl::Duration limit,
                      const std::function<absl::Status(grpc::ClientContext*)>& ask) {
  for (const SteadyClock clock;; absl::SleepFor(kAskAgainAfter)) {
    grpc::ClientContext context;
    SetDeadline(context, limit - clock.Now());
    context.set_wait_for_ready(true);
    const absl::Status status = ask(&context);
    const bool may_help = absl::IsUnavailable(status);
    if (may_help && clock.Now() + kAskAgainAfter < limit) continue;
    if (!absl::IsDeadlineExceeded(status)) return status;
    return absl::UnavailableError(
        absl::StrCat("the process at ", address,
                     " is too slow, or is not `syncline certs serve` of this authority; "
                     "check the address and try again"));
  }
}

absl::StatusOr<Identity> CheckAnswer(const PemPair& own, const std::string& authority) {
  const absl::Time now = absl::Now();
  SYNCLINE_RETURN_IF_ERROR(
      CheckIdentity({"the certificate", "that came", own.certificate},
                    {"the key", "of this machine", own.key}, now));
  SYNCLINE_RETURN_IF_ERROR(VerifyChain(own.certificate, authority, now));
  const CertificateFacts facts = FactsOf(*ParseCertificate(own.certificate));
  return ParseIdentityUri(facts.names.uris.size() == 1 ? facts.names.uris[0] : "");
}

}  // namespace syncline::certs
