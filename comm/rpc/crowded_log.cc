#include "comm/rpc/crowded_log.h"

namespace syncline {

void CrowdedLog::Say(const std::string& source) {
  const uint64_t times = times_.ToSay(source, "");
  if (times == 0) return;
  const std::string reason =
      "too many connections have made no call yet, most of them from this address: "
      "closed its oldest";
  log_.Warning("refused a connection",
               {{"reason", reason}, {"peer", source}, {"refused", times}});
  audit_.Warning("refused", {{"what", "a connection"},
                             {"reason", reason},
                             {"peer", source},
                             {"refused", times}});
}

}  // namespace syncline
