// Parses the address of the coordinator's state in an etcd of one or several members:
//
//   etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/syncline/training
//
// The path is a prefix of all keys. Each Syncline cluster that uses the same etcd needs
// its own prefix.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace syncline {

struct EtcdAddress {
  std::vector<std::string> members;  // HOST:PORT of each member, for clients
  std::string prefix;                // "/syncline/training", without a trailing slash

  std::string ToString() const;
};

// TLS of the connection to etcd, independent of the TLS between Syncline's processes.
// Without a CA the connection uses plain text.
struct EtcdTls {
  std::string ca_file = {};    // authority of etcd's certificates        (--etcd-ca)
  std::string cert_file = {};  // certificate of this coordinator         (--etcd-cert)
  std::string key_file = {};   // key of that certificate                 (--etcd-key)
};

// Fails with InvalidArgument, which says what is wrong. Without a path the prefix is
// /syncline.
absl::StatusOr<EtcdAddress> ParseEtcdAddress(std::string_view text);

// Fails with InvalidArgument for files that do not go together. Plain text to a member
// beyond loopback also fails, unless `insecure` permits it, because the state contains
// keys of jobs.
absl::Status CheckEtcdTls(const EtcdAddress& address, const EtcdTls& tls, bool insecure);

}  // namespace syncline
