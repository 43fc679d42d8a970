// The files of the dashboard, as they are in this folder.
#pragma once

#include <span>
#include <string_view>

namespace syncline {

struct DashboardFile {
  const char* path;  // on the admin port
  const char* type;  // for Content-Type
  std::string_view content;
};

std::span<const DashboardFile> DashboardFiles();

}  // namespace syncline
