// Sizes for people: "999 B", "1.5 MB", "12.3 GB".
#pragma once

#include <string>

namespace syncline {

std::string HumanBytes(double bytes);

}  // namespace syncline
