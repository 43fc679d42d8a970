// Decides which workers may connect to an engine, and receives on their connections.
#include "server/service/engine_connection.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/crowd.h"
#include "comm/base/status.h"
#include "comm/transport/message.h"

namespace syncline {
namespace {

std::string NameOf(const MemberIdentity& worker) {
  return absl::StrCat("rank ", worker.rank, " of job ", worker.job, ", incarnation ",
                      worker.incarnation);
}

}  // namespace

bool Engine::Connection::IsOwn(const MessageHeader& header) const {
  return MemberIdentity{header.job, header.rank, header.incarnation} == identity_;
}

absl::StatusOr<Buffer> Engine::Connection::Allocate(ByteView header,
                                                    size_t payload_bytes) {
  SYNCLINE_ASSIGN_OR_RETURN(const MessageHeader parsed, ParseHeader(header));
  if (IsOwn(parsed)) return engine_.Allocate(header, payload_bytes);
  const auto refused = absl::PermissionDeniedError(
      absl::StrCat("rank ", parsed.rank, " of job ", parsed.job, " is another worker"));
  if (std::exchange(is_impostor_, true)) return refused;  // already being closed
  engine_.OnRefused({Refusal::kIdentity, NameOf(identity_),
                     absl::StrCat("a worker sent a message in the name of rank ",
                                  parsed.rank, " of job ", parsed.job)});
  // Posted, because the transport is reading from the connection.
  engine_.loop_->Post([engine = &engine_, identity = identity_, number = number_](
                          Transport&) { engine->CloseConnection(identity, number); });
  return refused;
}

void Engine::Connection::OnMessage(ByteView header, Buffer payload) {
  const auto parsed = ParseHeader(header);
  if (parsed.ok() && IsOwn(*parsed)) {
    engine_.Take(*parsed, Slice::Of(payload), this);
  }
}

const SecretKey* Engine::FindKey(std::string_view identity) {
  const std::optional<MemberIdentity> worker = ParseIdentity(identity);
  if (!worker) return nullptr;
  const auto found = keys_.find(*worker);
  return found == keys_.end() ? nullptr : &found->second;
}

ConnectOptions Engine::OnAccepted(const std::string& identity,
                                  std::unique_ptr<Endpoint> endpoint) {
  const std::optional<MemberIdentity> worker = ParseIdentity(identity);
  // Its key may have been erased during the handshake.
  if (!worker || !keys_.contains(*worker)) return {};
  const uint64_t number = next_connection_++;
  if (const auto before = connections_.find(*worker); before != connections_.end()) {
    CloseConnection(*worker, before->second->number());
  }
  Connection& connection = *(connections_[*worker] = std::make_unique<Connection>(
                                 *this, *worker, number, std::move(endpoint)));
  const auto on_failure = [this, worker = *worker, number](const absl::Status& status) {
    options_.log.Warning("lost the connection to a worker",
                         {{"job", worker.job},
                          {"rank", worker.rank},
                          {"incarnation", worker.incarnation},
                          {"error", std::string(status.message())}});
    // Posted, because this function is part of the endpoint that it destroys.
    loop_->Post([this, worker, number](Transport&) { CloseConnection(worker, number); });
  };
  return {.on_failure = on_failure, .receiver = &connection};
}

void Engine::OnRefused(const RefusedPeer& refused) {
  if (options_.metrics != nullptr) options_.metrics->CountTurnedAway(refused.refusal);
  const std::string reason = RefusalName(refused.refusal);
  const uint64_t times =
      refused_.ToSay(absl::StrCat(SourceOf(refused.peer), "\n", reason), reason);
  if (times == 0) return;
  options_.log.Warning("connection refused", {{"peer", refused.peer},
                                              {"reason", reason},
                                              {"error", refused.why},
                                              {"refused", times}});
  options_.audit.Warning("refused", {{"what", "a data connection"},
                                     {"reason", refused.why},
                                     {"kind", reason},
                                     {"peer", refused.peer},
                                     {"refused", times}});
}

bool Engine::CloseIfClogged(const MessageHeader& header, WorkerLink& link) {
  if (!link.IsClogged()) return false;
  const uint64_t number = link.number();
  if (!clogged_.insert(number).second) return true;  // already being closed
  const MemberIdentity identity = {header.job, header.rank, header.incarnation};
  OnRefused(
      {Refusal::kUnread, NameOf(identity),
       absl::StrCat("a worker sends, but does not read the answers: ",
                    link.endpoint().send_state().waiting_bytes(), " bytes are waiting")});
  // Posted, because the transport is reading from the connection.
  loop_->Post(
      [this, identity, number](Transport&) { CloseConnection(identity, number); });
  return true;
}

void Engine::CloseConnection(const MemberIdentity& identity, uint64_t connection) {
  clogged_.erase(connection);
  ForgetWorker(identity.job, {identity.rank, identity.incarnation}, connection);
  const auto found = connections_.find(identity);
  if (found == connections_.end() || found->second->number() != connection) return;
  connections_.erase(found);
}

void Engine::ForgetJob(uint32_t job) {
  std::erase_if(keys_, [&](const auto& entry) { return entry.first.job == job; });
}

void Engine::TakeHello(Job& job, const MessageHeader& header, const Connection& from) {
  if (!CheckSize(header, 0).ok()) return;  // the epoch may have changed since
  options_.log.Debug("worker connected", {{"job", header.job},
                                          {"rank", header.rank},
                                          {"lanes", from.endpoint()->Describe()}});
  Greet(job, header, {.endpoint = from.endpoint(), .number = from.number()});
}

}  // namespace syncline
