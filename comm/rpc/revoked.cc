#include "comm/rpc/revoked.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "comm/base/failure.h"
#include "comm/base/printable.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

// RFC 5280 allows at most 20 octets.
constexpr size_t kMaxDigits = 40;

}  // namespace

absl::StatusOr<std::string> ParseSerial(const std::string& text) {
  std::string digits;
  bool is_serial = !text.empty();
  for (const char c : text) {
    if (c == ':') continue;
    is_serial = is_serial && absl::ascii_isxdigit(static_cast<unsigned char>(c));
    if (c != '0' || !digits.empty()) {
      digits.push_back(absl::ascii_toupper(static_cast<unsigned char>(c)));
    }
  }
  if (digits.size() % 2 == 1) digits.insert(0, 1, '0');
  if (is_serial && !digits.empty() && digits.size() <= kMaxDigits) return digits;
  return absl::InvalidArgumentError(absl::StrCat(
      "'", Printable(text), "' is not a serial number of a certificate (up to ",
      kMaxDigits, " hexadecimal digits, not all 0)"));
}

absl::StatusOr<std::set<std::string>> ParseRevoked(const std::string& contents) {
  std::set<std::string> serials;
  size_t number = 0;
  for (const absl::string_view line : absl::StrSplit(contents, '\n')) {
    ++number;
    const absl::string_view stripped = absl::StripAsciiWhitespace(line);
    if (stripped.empty() || stripped.front() == '#') continue;
    absl::StatusOr<std::string> serial =
        ParseSerial(std::string(stripped.substr(0, stripped.find_first_of(" \t"))));
    if (!serial.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", serial.status().message()));
    }
    serials.insert(*std::move(serial));
  }
  return serials;
}

absl::StatusOr<std::unique_ptr<RevokedList>> RevokedList::Open(RevokedOptions options) {
  std::unique_ptr<RevokedList> self(new RevokedList(std::move(options)));
  if (self->options_.path.empty()) return self;
  absl::MutexLock lock(&self->looking_);
  self->file_.HasChanged();
  if (const absl::Status read = self->Read(); !read.ok()) {
    return WithFailure(absl::InvalidArgumentError(absl::StrCat(
                           "--revoked '", self->options_.path, "', ", read.message())),
                       Failure::kUsage);
  }
  return self;
}

bool RevokedList::Contains(const std::string& serial) {
  if (options_.path.empty()) return false;
  if (file_.IsDue() && looking_.TryLock()) {
    LookAgain();
    looking_.Unlock();
  }
  const Serials& serials = *serials_.load();
  if (serials.empty()) return false;
  const absl::StatusOr<std::string> known = ParseSerial(serial);
  return known.ok() && serials.contains(*known);
}

absl::Status RevokedList::Read() {
  std::ifstream file(options_.path);
  std::ostringstream contents;
  contents << file.rdbuf();
  // An empty file is a valid list, although `<<` fails for it.
  if (!file.is_open() || file.bad()) {
    return absl::InvalidArgumentError("cannot be read; check path and permissions");
  }
  // While a file is copied in place, it is empty at first and then has only some of its
  // lines.
  const std::string said = contents.str();
  if (said.empty() && !serials_.load()->empty()) {
    return absl::InvalidArgumentError(
        "it is empty now; to revoke nothing, leave a line with # in it");
  }
  if (!said.empty() && said.back() != '\n') {
    return absl::InvalidArgumentError(
        "its last line does not end: it is not whole, or lacks a newline");
  }
  SYNCLINE_ASSIGN_OR_RETURN(Serials serials, ParseRevoked(said));
  if (serials == *serials_.load()) return absl::OkStatus();
  versions_.push_back(std::make_unique<const Serials>(std::move(serials)));
  serials_ = versions_.back().get();
  return absl::OkStatus();
}

void RevokedList::LookAgain() {
  if (!file_.HasChanged()) return;
  const absl::Status read = Read();
  if (read.ok()) {
    options_.log.Info("read the list of revoked certificates",
                      {{"file", options_.path}, {"revoked", serials_.load()->size()}});
    return;
  }
  options_.log.Error(
      "the list of revoked certificates cannot be used: its previous content stays in "
      "force",
      {{"file", options_.path},
       {"reason", std::string(read.message())},
       {"revoked", serials_.load()->size()}});
}

}  // namespace syncline
