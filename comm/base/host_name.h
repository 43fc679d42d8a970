// What this host and process are called in what people read: events, logs, certificates.
#pragma once

#include <string>

namespace syncline {

// As the system has it; "host" where it has none.
std::string HostName();

// "HOST:PID"
std::string ProcessName();

}  // namespace syncline
