#include "comm/compression/residual_rate.h"

#include <algorithm>

namespace syncline {

bool ResidualsFollowRate(std::string_view optimizer, const OptionValues& gradient) {
  if (optimizer != "sgd" && optimizer != "signsgd") return false;
  return std::ranges::none_of(gradient, [](const auto& option) {
    return option.first != "centralize" && option.second != 0;
  });
}

}  // namespace syncline
