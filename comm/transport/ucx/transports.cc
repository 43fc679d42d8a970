#include "comm/transport/ucx/transports.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace syncline {
namespace {

// The value of UCX_TLS: names to use, or after a '^' names not to use.
struct Wish {
  bool excludes = false;
  std::vector<std::string> names;
};

Wish ParseWish(absl::string_view text) {
  Wish wish;
  wish.excludes = absl::ConsumePrefix(&text, "^");
  wish.names = absl::StrSplit(text, ',', absl::SkipWhitespace());
  return wish;
}

bool IsOfOneHost(absl::string_view transport) {
  return transport == "posix" || transport == "sysv" || transport == "self";
}

TransportChoice ChooseInsideHost(QueueMemory memory, const Wish& wish) {
  TransportChoice choice;
  std::vector<std::string> kept;
  for (const std::string& name : wish.names) {
    const bool is_own = IsOfOneHost(name);
    if (is_own == wish.excludes) {
      choice.ignored.push_back(name);
    } else if (is_own && name != "self") {
      kept.push_back(name);
    }
  }
  if (kept.empty()) kept.push_back(memory == QueueMemory::kPosix ? "posix" : "sysv");
  choice.tls = absl::StrCat(absl::StrJoin(kept, ","), ",self");
  return choice;
}

// Accepts only characters of UCX's transport names. It refuses '*', which could match
// "tcp" in some version of UCX, and "\tcp", which is another way to write it.
bool IsPlainName(absl::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

TransportChoice ChooseForRdma(const std::string& otherwise, const Wish& wish) {
  TransportChoice choice;
  if (wish.excludes) {
    choice.tls = absl::StrCat("^", absl::StrJoin(wish.names, ","), ",tcp");
    return choice;
  }
  std::vector<std::string> kept;
  for (const std::string& name : wish.names) {
    const bool is_safe = IsPlainName(name) && name != "tcp" && name != "all";
    (is_safe ? kept : choice.ignored).push_back(name);
  }
  choice.tls = kept.empty() ? otherwise : absl::StrJoin(kept, ",");
  return choice;
}

bool IsRdma(absl::string_view resource) {
  for (const absl::string_view prefix : {"rc_", "ud_", "dc_", "srd", "ugni_"}) {
    if (absl::StartsWith(resource, prefix)) return true;
  }
  return false;
}

absl::Status NoRdma(const std::vector<std::string>& resources) {
  return absl::FailedPreconditionError(absl::StrCat(
      "--data-plane rdma, but UCX finds no RDMA device on this host that it may use "
      "(only ",
      absl::StrJoin(resources, " "),
      "): peers on other hosts could not connect. `syncline doctor` and `ibv_devinfo` "
      "show devices, whose port must be active; a container needs /dev/infiniband and "
      "the capability IPC_LOCK; UCX_TLS and UCX_NET_DEVICES must not leave them out. "
      "Without RDMA give --data-plane tls"));
}

}  // namespace

TransportChoice ChooseTransports(Reach reach, QueueMemory memory, const char* wanted) {
  const Wish wish = ParseWish(wanted == nullptr ? "" : wanted);
  const char* but = memory == QueueMemory::kPosix ? "sysv" : "posix";
  switch (reach) {
    case Reach::kHostOnly:
      return ChooseInsideHost(memory, wish);
    case Reach::kRdma:
      return ChooseForRdma(absl::StrCat("^cma,tcp,", but), wish);
    case Reach::kNetwork:
      break;
  }
  return {wanted != nullptr ? std::string(wanted) : absl::StrCat("^cma,", but), {}};
}

absl::Status CheckResources(Reach reach, const std::vector<std::string>& resources) {
  if (reach == Reach::kNetwork || resources.empty()) return absl::OkStatus();
  for (const std::string& resource : resources) {
    const std::string transport = resource.substr(0, resource.find('/'));
    if (reach == Reach::kHostOnly ? !IsOfOneHost(transport) : transport == "tcp") {
      return absl::FailedPreconditionError(
          absl::StrCat("UCX uses ", resource,
                       ", through which strangers could end this process; unset the "
                       "UCX_* variables, and look for a ucx.conf"));
    }
  }
  const bool has_rdma = std::any_of(resources.begin(), resources.end(), IsRdma);
  return reach == Reach::kRdma && !has_rdma ? NoRdma(resources) : absl::OkStatus();
}

}  // namespace syncline
