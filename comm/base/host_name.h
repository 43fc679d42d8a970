// Names of this host and process for events, logs and certificates.
#pragma once

#include <string>

namespace syncline {

// Returns the system's host name, or "host" if there is none.
std::string HostName();

// "HOST:PID"
std::string ProcessName();

}  // namespace syncline
