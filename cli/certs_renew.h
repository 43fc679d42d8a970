// `syncline certs renew`: replaces a machine's certificate, which authorizes the request
// (cli/authority/renew.h, docs/tls.md).
//
//   syncline certs renew certs/worker-bert.crt ca.example:7073            # once, now
//   syncline certs renew certs/worker-bert.crt ca.example:7073 --watch    # whenever it is due
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddCertsRenew(CLI::App& certs, Command* selected);

}  // namespace syncline
