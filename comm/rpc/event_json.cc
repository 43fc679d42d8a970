#include "comm/rpc/event_json.h"

#include <utility>

#include "comm/base/status.h"
#include "comm/rpc/coordinator_call.h"
#include "nlohmann/json.hpp"
#include "proto/coordinator.grpc.pb.h"

namespace syncline {
namespace {

using Json = nlohmann::ordered_json;

// Names come from members, so invalid UTF-8 must not end the process.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Json EventToJson(const v1::Event& event) {
  Json json = {{"job", event.job()},       {"job_name", event.job_name()},
               {"number", event.number()}, {"time", event.time()},
               {"kind", event.kind()},     {"step", event.step()},
               {"what", event.what()}};
  if (event.has_seconds()) json["seconds"] = event.seconds();
  return json;
}

std::string EventAsJson(const v1::Event& event) { return Dump(EventToJson(event)); }

std::string EventsAsJson(const v1::EventsReply& reply) {
  Json events = Json::array();
  for (const v1::Event& event : reply.events()) events.push_back(EventToJson(event));
  return Dump({{"events", std::move(events)}});
}

absl::StatusOr<v1::EventsReply> FetchEvents(const std::string& address,
                                            const TlsOptions& tls, const std::string& job,
                                            absl::Duration timeout) {
  SYNCLINE_ASSIGN_OR_RETURN(const CoordinatorCaller coordinator,
                            CoordinatorCaller::Connect(address, tls, timeout));
  v1::EventsRequest request;
  request.set_job(job);
  return coordinator.Call(&v1::Coordinator::Stub::Events, request, timeout);
}

}  // namespace syncline
