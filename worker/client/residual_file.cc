#include "worker/client/residual_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/crc32c.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

constexpr uint64_t kMagic = 0x3153455259434e53;  // "SNCYRES1"
constexpr uint64_t kLongestText = uint64_t{1} << 16;

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

std::string Reason() { return std::strerror(errno); }

// Writes values one after another, and computes their CRC.
class Writer {
 public:
  explicit Writer(std::FILE* file) : file_(file) {}

  template <typename T>
  void Put(std::span<const T> values) {
    const auto bytes = std::as_bytes(values);
    if (bytes.empty()) return;
    crc_ = Crc32c(bytes, crc_);
    good_ = good_ && std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size();
  }
  template <typename T>
  void PutAll(std::span<const T> values) {
    const uint64_t count = values.size();
    Put(std::span(&count, 1));
    Put(values);
  }
  bool Finish() {
    const uint32_t crc = crc_;
    Put(std::span(&crc, 1));
    return good_ && std::fflush(file_) == 0 && fsync(fileno(file_)) == 0;
  }

 private:
  std::FILE* const file_;
  uint32_t crc_ = 0;
  bool good_ = true;
};

// Reads the values that Writer wrote. Fails instead of reading beyond the end of the
// file.
class Reader {
 public:
  Reader(std::FILE* file, uint64_t bytes) : file_(file), left_(bytes) {}

  template <typename T>
  bool Get(std::span<T> values) {
    const auto bytes = std::as_writable_bytes(values);
    if (bytes.empty()) return true;
    if (bytes.size() > left_) return false;
    left_ -= bytes.size();
    if (std::fread(bytes.data(), 1, bytes.size(), file_) != bytes.size()) return false;
    crc_ = Crc32c(bytes, crc_);
    return true;
  }
  // Reads a count and as many values. Fails if there are more than `most`.
  template <typename Values>
  bool GetAll(Values& values, uint64_t most) {
    uint64_t count = 0;
    if (!Get(std::span(&count, 1)) || count > most) return false;
    if (count > left_ / sizeof(values[0])) return false;
    values.resize(count);
    return Get(std::span(values));
  }
  template <typename Values>
  bool GetAll(Values& values) {
    return GetAll(values, left_);
  }
  bool EndsWithItsCrc() {
    const uint32_t crc = crc_;
    uint32_t written = 0;
    return Get(std::span(&written, 1)) && written == crc && left_ == 0;
  }
  uint64_t left() const { return left_; }

 private:
  std::FILE* const file_;
  uint64_t left_;
  uint32_t crc_ = 0;
};

bool GetPart(Reader& reader, SavedResidual& part) {
  return reader.GetAll(part.tensor, kLongestText) &&
         reader.GetAll(part.codec, kLongestText) && reader.GetAll(part.residual) &&
         reader.GetAll(part.velocity) && reader.GetAll(part.units);
}

void PutParts(Writer& writer, const std::vector<ResidualPart>& parts) {
  const uint64_t head[] = {kMagic, parts.size()};
  writer.Put(std::span<const uint64_t>(head));
  for (const ResidualPart& part : parts) {
    writer.PutAll(std::span<const char>(part.tensor));
    writer.PutAll(std::span<const char>(part.codec));
    writer.PutAll(part.kept.residual);
    writer.PutAll(part.kept.velocity);
    writer.PutAll(part.kept.units);
  }
}

}  // namespace

// Writes to a new file first, so that a crash or a full disk leaves the old one.
absl::Status WriteResiduals(const std::string& path,
                            const std::vector<ResidualPart>& parts) {
  const std::string fresh = absl::StrCat(path, ".new");
  File file(std::fopen(fresh.c_str(), "wb"));
  if (file == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot write ", fresh, ": ", Reason()));
  }
  Writer writer(file.get());
  PutParts(writer, parts);
  if (!writer.Finish() || std::rename(fresh.c_str(), path.c_str()) != 0) {
    const absl::Status failed =
        absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", Reason()));
    std::remove(fresh.c_str());
    return failed;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SavedResidual>> ReadResiduals(const std::string& path) {
  const File file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", Reason()));
  }
  std::fseek(file.get(), 0, SEEK_END);
  Reader reader(file.get(), static_cast<uint64_t>(std::ftell(file.get())));
  std::rewind(file.get());
  uint64_t head[2] = {};
  if (!reader.Get(std::span<uint64_t>(head)) || head[0] != kMagic) {
    return absl::DataLossError(
        absl::StrCat(path, " is not a file of residuals (Session::SaveResiduals)"));
  }
  std::vector<SavedResidual> parts;
  bool good = true;
  for (uint64_t i = 0; good && i < head[1]; ++i)
    good = GetPart(reader, parts.emplace_back());
  if (good && reader.EndsWithItsCrc()) return parts;
  return absl::DataLossError(absl::StrCat(path, " is damaged: it was cut or changed"));
}

}  // namespace syncline
