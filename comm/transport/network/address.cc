#include "comm/transport/network/address.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "comm/base/crc32c.h"
#include "comm/base/status.h"
#include "comm/transport/tcp/address.h"
#include "comm/transport/ucx/address.h"

namespace syncline {
namespace {

static_assert(std::endian::native == std::endian::little);
constexpr uint32_t kMagic = 0x324e4c53;  // "SLN2"

struct Prefix {
  uint32_t magic;
  uint32_t crc;
  uint8_t mode;
  uint8_t zero;
  uint16_t tcp_bytes;
};
static_assert(sizeof(Prefix) == 12);
constexpr size_t kCheckedFrom = 8;

uint32_t CrcOf(const std::string& bytes) {
  return Crc32c(std::as_bytes(std::span(bytes)).subspan(kCheckedFrom));
}

}  // namespace

std::string EncodeNetworkAddress(const NetworkAddress& address) {
  Prefix prefix = {kMagic, 0, static_cast<uint8_t>(address.mode), 0,
                   static_cast<uint16_t>(address.tcp.size())};
  std::string bytes(sizeof(prefix), '\0');
  std::memcpy(bytes.data(), &prefix, sizeof(prefix));
  bytes += address.tcp;
  bytes += address.ucx;
  prefix.crc = CrcOf(bytes);
  std::memcpy(bytes.data(), &prefix, sizeof(prefix));
  return bytes;
}

absl::StatusOr<NetworkAddress> ParseNetworkAddress(const std::string& bytes) {
  Prefix prefix;
  if (bytes.size() < sizeof(prefix)) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport address of ", bytes.size(), " bytes is too short"));
  }
  std::memcpy(&prefix, bytes.data(), sizeof(prefix));
  if (prefix.magic != kMagic || prefix.zero != 0 || prefix.crc != CrcOf(bytes) ||
      prefix.mode > static_cast<uint8_t>(DataPlaneMode::kRdma) ||
      prefix.tcp_bytes > bytes.size() - sizeof(prefix)) {
    return absl::InvalidArgumentError("damaged transport address");
  }
  return NetworkAddress{.mode = static_cast<DataPlaneMode>(prefix.mode),
                        .tcp = bytes.substr(sizeof(prefix), prefix.tcp_bytes),
                        .ucx = bytes.substr(sizeof(prefix) + prefix.tcp_bytes)};
}

std::string DescribeNetworkAddress(const std::string& bytes) {
  constexpr std::string_view kDamaged = "a damaged address";
  const auto address = ParseNetworkAddress(bytes);
  if (!address.ok()) return std::string(kDamaged);
  if (!address->tcp.empty()) {
    const auto tcp = ParseTcpAddress(address->tcp);
    return tcp.ok() ? DescribeAddress(*tcp) : std::string(kDamaged);
  }
  const auto ucx = ParseAddress(address->ucx);
  return ucx.ok() ? absl::StrCat("process ", ucx->process_id, " of this host")
                  : std::string(kDamaged);
}

absl::StatusOr<DataPlaneMode> ModeOf(std::span<const std::string> addresses) {
  DataPlaneMode mode = DataPlaneMode::kHost;
  for (const std::string& bytes : addresses) {
    SYNCLINE_ASSIGN_OR_RETURN(const NetworkAddress address, ParseNetworkAddress(bytes));
    if (&bytes != addresses.data() && !MayMeet(address.mode, mode)) {
      return absl::InvalidArgumentError(
          absl::StrCat("servers of one job are reached in different ways: ",
                       std::string(DescribeMode(mode)), " and ",
                       std::string(DescribeMode(address.mode)),
                       "; start all with the same --data-plane"));
    }
    mode = std::max(mode, address.mode);  // kAuto if one of them is
  }
  return mode;
}

}  // namespace syncline
