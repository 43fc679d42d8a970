#include "cli/certs_renew.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/authority/directory.h"
#include "cli/authority/renew.h"
#include "cli/certs.h"
#include "cli/stop_signal.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/log.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"
#include "comm/rpc/certificate.h"

namespace syncline {
namespace {

// Limit for connecting, and again for the answer. Ctrl-C has to wait that long.
constexpr absl::Duration kAttempt = absl::Seconds(5);
constexpr absl::Duration kLongestPause = absl::Minutes(1);

struct RenewFlags {
  certs::RenewOrder order;
  bool watches = false;
};

// Renews one certificate whenever it is due. It reads the file each time, since another
// program may have replaced it.
class Watch {
 public:
  Watch(certs::RenewOrder order, Logger log)
      : order_(std::move(order)), log_(std::move(log)) {
    order_.limit = kAttempt;
  }

  // Checks that renewal is possible, so that an error shows now and not when it is due.
  absl::Status Begin() {
    SYNCLINE_RETURN_IF_ERROR(certs::CheckRenewable(order_));
    SYNCLINE_ASSIGN_OR_RETURN(facts_, certs::ReadFacts(order_.base + ".crt"));
    return absl::OkStatus();
  }

  // Called once a second. Returns an error if the certificate cannot be renewed any more.
  absl::Status Look() {
    const absl::Time now = absl::Now();
    if (now < again_) return absl::OkStatus();
    // A failed read is ignored: another program may be replacing the files.
    const auto found = certs::ReadFacts(order_.base + ".crt");
    if (found.ok()) facts_ = *found;
    const absl::Time due = certs::WhenToRenew(facts_.from, facts_.until, facts_.serial);
    if (facts_.serial != told_) {
      told_ = facts_.serial;
      log_.Info("the certificate is renewed in time",
                {{"certificate", order_.base + ".crt"},
                 {"due", certs::Written(due)},
                 {"until", certs::Written(facts_.until)}});
    }
    if (now < due) return absl::OkStatus();
    const absl::Duration pause =
        std::min(kLongestPause, (facts_.until - facts_.from) / 60);
    again_ = now + pause;
    const absl::Status status = certs::Renew(order_);
    if (status.ok() || absl::IsPermissionDenied(status)) return status;
    if (now >= facts_.until) return Ended(status);
    log_.Warning("the certificate is not renewed yet",
                 {{"reason", std::string(status.message())},
                  {"again in", absl::FormatDuration(pause)},
                  {"until", certs::Written(facts_.until)}});
    return absl::OkStatus();
  }

 private:
  absl::Status Ended(const absl::Status& why) const {
    return absl::FailedPreconditionError(
        absl::StrCat("'", order_.base, ".crt' expired on ", certs::Written(facts_.until),
                     ", and could not be renewed before: ", why.message(),
                     "; join again with a token (`syncline certs token`)"));
  }

  certs::RenewOrder order_;
  const Logger log_;
  CertificateFacts facts_ = {};  // contents of the file when it was last readable
  std::string told_;             // serial whose due time was logged
  absl::Time again_ = absl::InfinitePast();
};

absl::StatusOr<int> RenewNow(RenewFlags flags) {
  certs::RenewOrder& order = flags.order;
  if (order.base.empty() || order.address.empty()) {
    return WithFailure(
        absl::InvalidArgumentError(
            "certs renew needs a certificate, and HOST:PORT of `syncline certs serve`"),
        Failure::kUsage);
  }
  const absl::StatusOr<HostPort> address = ParseHostPort(order.address);
  if (!address.ok()) return WithFailure(address.status(), Failure::kUsage);
  order.base = std::string(absl::StripSuffix(order.base, ".crt"));
  if (flags.watches) {
    StopSignal stop;
    Watch watch(order, Logger::Create({}));
    SYNCLINE_RETURN_IF_ERROR(watch.Begin());
    SYNCLINE_RETURN_IF_ERROR(watch.Look());
    SYNCLINE_ASSIGN_OR_RETURN(const int signal, stop.Wait([&] {
      if (const absl::Status status = watch.Look(); !status.ok()) stop.Fail(status);
    }));
    return 128 + signal;
  }
  SYNCLINE_RETURN_IF_ERROR(certs::Renew(order));
  SYNCLINE_ASSIGN_OR_RETURN(const std::string shown,
                            ShowCertificate(order.base + ".crt"));
  std::cout << shown;
  return kExitDone;
}

}  // namespace

void AddCertsRenew(CLI::App& certs, Command* selected) {
  auto flags = std::make_shared<RenewFlags>();
  CLI::App* renew = certs.add_subcommand("renew", "Renew the certificate of a machine");
  renew->add_option("certificate", flags->order.base, "PATH.crt, beside PATH.key");
  renew->add_option("address", flags->order.address, "HOST:PORT of certs serve");
  renew->add_option("--ca", flags->order.ca_file,
                    "The authority's certificate (default: ca.crt beside it)");
  renew->add_flag(
      "--watch", flags->watches,
      "Keep running, and renew each time when a third of the lifetime is left");
  renew->callback([=] { *selected = [flags] { return RenewNow(*flags); }; });
}

}  // namespace syncline
