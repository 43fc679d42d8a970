#include "worker/examples/fashion_mnist/idx_file.h"

#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/status.h"

namespace syncline::fashion_mnist {
namespace {

constexpr uint8_t kUnsignedByte = 0x08;  // the element type of all MNIST-like files

struct GzClose {
  void operator()(gzFile file) const { gzclose(file); }
};
using GzHandle = std::unique_ptr<gzFile_s, GzClose>;

absl::Status ReadExactly(gzFile file, const std::string& path, std::span<uint8_t> out) {
  const int got = gzread(file, out.data(), static_cast<unsigned>(out.size()));
  if (got == static_cast<int>(out.size())) return absl::OkStatus();
  int code = Z_OK;
  const char* why = gzerror(file, &code);
  return absl::DataLossError(
      absl::StrCat(path, ": ", got < 0 || code != Z_OK ? why : "ends too early"));
}

uint32_t BigEndian32(const uint8_t* bytes) {
  return static_cast<uint32_t>(bytes[0]) << 24 | static_cast<uint32_t>(bytes[1]) << 16 |
         static_cast<uint32_t>(bytes[2]) << 8 | bytes[3];
}

absl::Status ReadHeader(gzFile file, const std::string& path,
                        const std::vector<uint32_t>& expected) {
  uint8_t magic[4];
  SYNCLINE_RETURN_IF_ERROR(ReadExactly(file, path, magic));
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != kUnsignedByte) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not an IDX file of unsigned bytes (magic ",
                     absl::Hex(BigEndian32(magic), absl::kZeroPad8), ")"));
  }
  if (magic[3] != expected.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", magic[3], " dimensions, not ", expected.size()));
  }
  std::vector<uint32_t> found;
  for (size_t i = 0; i < expected.size(); ++i) {
    uint8_t size[4];
    SYNCLINE_RETURN_IF_ERROR(ReadExactly(file, path, size));
    found.push_back(BigEndian32(size));
  }
  if (found != expected) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": sizes are ",
                                                   absl::StrJoin(found, "x"), ", not ",
                                                   absl::StrJoin(expected, "x")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<uint8_t>> ReadIdxFile(
    const std::string& path, const std::vector<uint32_t>& dimensions) {
  const GzHandle file(gzopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  SYNCLINE_RETURN_IF_ERROR(ReadHeader(file.get(), path, dimensions));
  size_t bytes = 1;
  for (const uint32_t size : dimensions) bytes *= size;
  std::vector<uint8_t> elements(bytes);
  SYNCLINE_RETURN_IF_ERROR(ReadExactly(file.get(), path, elements));
  // Reading on past the end also makes zlib check the trailing checksum.
  uint8_t beyond;
  if (const int more = gzread(file.get(), &beyond, 1); more != 0) {
    return absl::DataLossError(absl::StrCat(
        path, more > 0 ? ": has more bytes than its sizes say" : ": corrupt at its end"));
  }
  return elements;
}

}  // namespace syncline::fashion_mnist
