#include "comm/transport/ucx/ucx.h"

#include <memory>
#include <utility>

#include "comm/base/status.h"
#include "comm/transport/ucx/transport.h"

namespace syncline {

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const UcxOptions& options,
                                                              Receiver& receiver) {
  SYNCLINE_ASSIGN_OR_RETURN(std::unique_ptr<UcxWorker> worker,
                            UcxWorker::Create(options));
  return UcxTransport::Create(std::move(worker), receiver, options);
}

}  // namespace syncline
