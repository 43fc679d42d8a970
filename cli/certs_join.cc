#include "cli/certs_join.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/audit_log.h"
#include "cli/authority/directory.h"
#include "cli/authority/join.h"
#include "cli/authority/join_service.h"
#include "cli/authority/token_book.h"
#include "cli/certs.h"
#include "cli/flags.h"
#include "cli/stop_signal.h"
#include "comm/base/exit_codes.h"
#include "comm/base/failure.h"
#include "comm/base/host_name.h"
#include "comm/base/log.h"
#include "comm/base/process_limits.h"
#include "comm/base/status.h"
#include "comm/rpc/address.h"
#include "comm/rpc/crowded_log.h"
#include "comm/rpc/join_channel.h"
#include "comm/rpc/join_token.h"

namespace syncline {
namespace {

constexpr absl::Duration kLongestToken = absl::Hours(24 * 7);
constexpr char kPort[] = ":7073";
// How long a request under way may still take after a stop signal.
constexpr absl::Duration kGrace = absl::Seconds(1);

struct AnswerFlags {
  std::string directory = {};
  std::string listen = absl::StrCat("0.0.0.0", kPort);
  std::string audit_log = {};  // empty: in the directory
};

absl::Status Usage(const std::string& message) {
  return WithFailure(absl::InvalidArgumentError(message), Failure::kUsage);
}

absl::StatusOr<certs::TokenTerms> TermsOf(const CertsToken& order, absl::Time now) {
  certs::TokenTerms terms = {.hours = order.hours, .uses = order.uses};
  SYNCLINE_ASSIGN_OR_RETURN(terms.who, certs::ParseMember(order.role, order.job));
  if (terms.who.role == Role::kCoordinator) {
    return Usage(
        "a coordinator cannot join with a token: clients check its host name, so make "
        "its certificate here (`syncline certs issue DIR --role coordinator --host "
        "HOST`)");
  }
  SYNCLINE_RETURN_IF_ERROR(certs::ValidFor(order.hours).status());
  SYNCLINE_ASSIGN_OR_RETURN(const absl::Duration ttl,
                            ParseDurationFlag("--ttl", order.ttl));
  if (ttl < absl::Seconds(1) || ttl > kLongestToken) {
    return Usage(absl::StrCat("--ttl ", order.ttl, " is not in 1s to 168h"));
  }
  if (order.uses < 1 || order.uses > certs::kMaxTokenUses) {
    return Usage(
        absl::StrCat("--uses ", order.uses, " is not in 1 to ", certs::kMaxTokenUses));
  }
  terms.until = now + ttl;
  return terms;
}

absl::StatusOr<int> Token(const CertsToken& order) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string token, MakeToken(order));
  std::cout << token << std::endl;
  // The token alone goes to standard output, so that a script can capture it.
  std::cerr << "good for " << order.ttl << " and "
            << (order.uses == 1 ? "one machine" : absl::StrCat(order.uses, " machines"))
            << ". Here: syncline certs serve " << order.directory
            << ". There: syncline certs join TOKEN\n";
  return kExitDone;
}

absl::StatusOr<int> ServeTokens(const AnswerFlags& flags) {
  SYNCLINE_ASSIGN_OR_RETURN(const certs::Authority authority,
                            certs::ReadAuthority(flags.directory));
  StopSignal stop;
  const Logger log = Logger::Create({});
  AuditLogEvents events;
  events.on_change = [log](const std::string& reason, uint64_t lost) {
    log.Error(reason.empty() ? "the audit log is written again"
                             : "lines of the audit log are lost",
              {{"reason", reason}, {"lost", lost}});
  };
  SYNCLINE_ASSIGN_OR_RETURN(
      const auto audit,
      AuditLog::Open(
          flags.audit_log.empty() ? flags.directory + "/audit.log" : flags.audit_log,
          std::move(events)));
  certs::JoinService service(
      authority, {.directory = flags.directory, .log = log, .audit = audit->logger()});
  CrowdedLog crowded(log, audit->logger());
  RaiseFileLimit();
  const absl::Time now = absl::Now();
  SYNCLINE_ASSIGN_OR_RETURN(
      RunningServer running,
      StartJoinServer({.listen = flags.listen,
                       .authority = authority.pair,
                       .validity = {now - absl::Minutes(5), authority.until},
                       .service = &service,
                       .on_crowded = [&](const auto& source) { crowded.Say(source); },
                       .log = log}));
  std::cout << "syncline: ready join=" << running.address
            << " authority=" << authority.fingerprint << std::endl;
  const absl::StatusOr<int> signal = stop.Wait([] {});
  running.Shutdown(kGrace);
  SYNCLINE_RETURN_IF_ERROR(signal.status());
  return 128 + *signal;
}

// Reads the token from standard input if it is "-". The list of processes then does not
// show it.
std::string FromInput(const std::string& token) {
  if (token != "-") return token;
  std::string line;
  std::getline(std::cin, line);
  return line;
}

absl::StatusOr<int> JoinNow(certs::JoinOrder order) {
  order.token = FromInput(order.token);
  if (order.token.empty()) {
    return Usage(
        "certs join needs the token of `syncline certs token`, or - to read it from "
        "standard input");
  }
  SYNCLINE_ASSIGN_OR_RETURN(const std::string base, certs::Join(order));
  SYNCLINE_ASSIGN_OR_RETURN(const std::string shown, ShowCertificate(base + ".crt"));
  std::cout << shown << "Use it with --tls-cert " << base << ".crt --tls-key " << base
            << ".key --tls-ca " << order.directory << "/ca.crt\n";
  return kExitDone;
}

void AddToken(CLI::App& certs, Command* selected) {
  auto order = std::make_shared<CertsToken>();
  CLI::App* token = certs.add_subcommand(
      "token", "Make a token with which new machines get certificates");
  token->add_option("directory", order->directory, "Directory of certs init");
  token->add_option("--role", order->role, "server, worker, operator or reader");
  token->add_option("--job", order->job, "Job of a worker");
  token->add_option("--ttl", order->ttl, "How long the token is valid")
      ->capture_default_str();
  token->add_option("--uses", order->uses, "How many machines may use it")
      ->capture_default_str();
  token
      ->add_option("--hours", order->hours,
                   "How long the machines' certificates are valid")
      ->capture_default_str();
  token->add_option("--address", order->address,
                    "HOST:PORT at which machines reach certs serve; default: this host's "
                    "name and port 7073");
  token->callback([=] { *selected = [order] { return Token(*order); }; });
}

}  // namespace

absl::StatusOr<std::string> MakeToken(const CertsToken& order) {
  const absl::Time now = absl::Now();
  SYNCLINE_ASSIGN_OR_RETURN(const certs::TokenTerms terms, TermsOf(order, now));
  SYNCLINE_ASSIGN_OR_RETURN(const certs::Authority authority,
                            certs::ReadAuthority(order.directory));
  JoinToken token = DrawJoinToken();
  token.authority = authority.fingerprint;
  token.address = order.address.empty() ? absl::StrCat(HostName(), kPort) : order.address;
  const std::string written = Written(token);
  if (!ParseJoinToken(written).ok()) {
    return Usage(
        absl::StrCat("--address '", order.address,
                     "' is not an address that machines can dial: give HOST:PORT"));
  }
  // A name that no certificate can contain is refused here, not when the machine joins.
  certs::Wish wish = {.who = terms.who, .hosts = {}, .validity = {}};
  wish.who.cluster = authority.cluster;
  SYNCLINE_RETURN_IF_ERROR(certs::OrderFor(wish).status());
  SYNCLINE_RETURN_IF_ERROR(certs::AddToken(
      order.directory, {token.id, HashOfSecret(token.secret)}, terms, now));
  AddAuditLine(order.directory, "made a token",
               {{"token", token.id},
                {"identity", Describe(wish.who)},
                {"uses", terms.uses},
                {"until", certs::Written(terms.until)}});
  return written;
}

void AddCertsJoin(CLI::App& certs, Command* selected) {
  AddToken(certs, selected);

  auto flags = std::make_shared<AnswerFlags>();
  CLI::App* serve = certs.add_subcommand(
      "serve", "Answer machines that join with a token or renew their certificates");
  serve->add_option("directory", flags->directory, "Directory of certs init");
  serve->add_option("--listen", flags->listen, "Where")->capture_default_str();
  serve->add_option("--audit-log", flags->audit_log,
                    "File to which it adds a line of JSON for each machine; default "
                    "audit.log in the directory");
  serve->callback([=] { *selected = [flags] { return ServeTokens(*flags); }; });

  auto order = std::make_shared<certs::JoinOrder>();
  CLI::App* join =
      certs.add_subcommand("join", "Make a key here and get a certificate for it");
  join->add_option("token", order->token,
                   "Token of certs token; - reads it from standard input");
  join->add_option("--out", order->directory,
                   "Directory for the key and the certificates")
      ->capture_default_str();
  join->callback([=] { *selected = [order] { return JoinNow(*order); }; });
}

}  // namespace syncline
