#include "comm/transport/ucx/address.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/base/crc32c.h"
#include "comm/base/job_seed.h"

namespace syncline {
namespace {

constexpr uint32_t kMagic = 0x31554c53;  // "SLU1"

struct Prefix {
  uint32_t magic;
  uint32_t crc;
  uint64_t place;
  uint32_t process_id;
  uint32_t zero;
};
static_assert(sizeof(Prefix) == 24);
constexpr size_t kCheckedFrom = 8;

uint32_t CrcOf(const std::string& bytes) {
  return Crc32c(std::as_bytes(std::span(bytes)).subspan(kCheckedFrom));
}

uint64_t Inode(const char* path) {
  struct stat status = {};
  return stat(path, &status) == 0 ? status.st_ino : 0;
}

}  // namespace

uint64_t PlaceOfThisProcess() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  const std::string place = absl::StrCat(boot, " ", Inode("/proc/self/ns/ipc"), " ",
                                         Inode("/proc/self/ns/pid"), " ", geteuid());
  return PlaceOf(place);
}

// Uses one 64-bit hash instead of two CRCs: for texts of the same length, CRCs with
// different seeds differ by a constant only.
uint64_t PlaceOf(std::string_view description) { return JobSeed(description); }

std::string EncodeAddress(const UcxAddress& address) {
  Prefix prefix = {kMagic, 0, address.place, address.process_id, 0};
  std::string bytes(sizeof(prefix), '\0');
  std::memcpy(bytes.data(), &prefix, sizeof(prefix));
  bytes += address.worker;
  prefix.crc = CrcOf(bytes);
  std::memcpy(bytes.data(), &prefix, sizeof(prefix));
  return bytes;
}

absl::StatusOr<UcxAddress> ParseAddress(const std::string& bytes) {
  Prefix prefix;
  if (bytes.size() <= sizeof(prefix)) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport address of ", bytes.size(), " bytes is too short"));
  }
  std::memcpy(&prefix, bytes.data(), sizeof(prefix));
  if (bytes.size() > kMaxUcxAddressBytes) {
    return absl::InvalidArgumentError(absl::StrCat("transport address of ", bytes.size(),
                                                   " bytes, where at most ",
                                                   kMaxUcxAddressBytes, " make sense"));
  }
  if (prefix.magic != kMagic || prefix.zero != 0 || prefix.crc != CrcOf(bytes)) {
    return absl::InvalidArgumentError(
        "damaged transport address: its CRC does not match");
  }
  return UcxAddress{prefix.place, prefix.process_id, bytes.substr(sizeof(prefix))};
}

}  // namespace syncline
