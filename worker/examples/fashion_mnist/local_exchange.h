// An Exchange without servers: torch's AdamW, in this process. What the same training
// reaches without Syncline, and the oracle for the optimizer of the servers.
#pragma once

#include <memory>
#include <span>

#include "worker/examples/fashion_mnist/exchange.h"
#include "worker/examples/fashion_mnist/optimizer_settings.h"

namespace syncline::fashion_mnist {

// The values of `parameters` must outlive the exchange.
std::unique_ptr<Exchange> MakeLocalExchange(std::span<const Parameter> parameters,
                                            const OptimizerSettings& settings);

}  // namespace syncline::fashion_mnist
