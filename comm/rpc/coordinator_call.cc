#include "comm/rpc/coordinator_call.h"

#include "comm/base/status.h"
#include "comm/rpc/timeouts.h"

namespace syncline {

absl::StatusOr<CoordinatorCaller> CoordinatorCaller::Connect(const std::string& address,
                                                             const TlsOptions& tls,
                                                             absl::Duration timeout) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto channel,
                            CreateChannel(address, tls, RpcTimeouts::Default()));
  SYNCLINE_RETURN_IF_ERROR(WaitUntilConnected(*channel, address, tls, timeout));
  return CoordinatorCaller(channel);
}

}  // namespace syncline
