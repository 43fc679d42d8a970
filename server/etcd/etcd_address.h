// Where the coordinator's state is, in an etcd of one member or several:
//
//   etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/syncline/training
//
// The path is a prefix of all keys: clusters of Syncline that share an etcd have one each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace syncline {

struct EtcdAddress {
  std::vector<std::string> members;  // HOST:PORT, of clients
  std::string prefix;                // "/syncline/training", without a slash at its end

  std::string ToString() const;
};

// etcd's own TLS, apart from that of Syncline's members. Without a CA: plain text.
struct EtcdTls {
  std::string ca_file = {};    // whose certificates its members have   (--etcd-ca)
  std::string cert_file = {};  // this coordinator's                    (--etcd-cert)
  std::string key_file = {};   //                                       (--etcd-key)
};

// InvalidArgument says what is wrong. Without a path the prefix is /syncline.
absl::StatusOr<EtcdAddress> ParseEtcdAddress(std::string_view text);

// InvalidArgument for files that do not go together, and for plain text to a member beyond
// loopback, unless that is `insecure` on purpose: the state holds keys of jobs.
absl::Status CheckEtcdTls(const EtcdAddress& address, const EtcdTls& tls, bool insecure);

}  // namespace syncline
