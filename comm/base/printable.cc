#include "comm/base/printable.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncline {
namespace {

bool ChangesTheLine(uint32_t code_point) {
  const auto within = [code_point](uint32_t first, uint32_t last) {
    return code_point >= first && code_point <= last;
  };
  return code_point < 0x20 || within(0x7f, 0x9f) ||           // C0, DEL, C1
         within(0x2028, 0x2029) ||                            // separators
         within(0x200e, 0x200f) || within(0x202a, 0x202e) ||  // direction of writing
         within(0x2066, 0x2069) || code_point == 0x061c;
}

// Returns the number of bytes of the printable character at the start of `text`. 0: there
// is none.
size_t PrintableCharacter(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return ChangesTheLine(first) ? 0 : 1;
  const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < size) return 0;
  uint32_t code_point = first & (0x7fU >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code_point = (code_point << 6) | (byte(i) & 0x3fU);
  }
  const bool is_overlong =
      (size == 3 && code_point < 0x800) || (size == 4 && code_point < 0x10000);
  const bool is_surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
  if (is_overlong || is_surrogate || code_point > 0x10ffff) return 0;
  return ChangesTheLine(code_point) ? 0 : size;
}

}  // namespace

bool IsPrintable(std::string_view text) {
  while (!text.empty()) {
    const size_t size = PrintableCharacter(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string Printable(std::string_view text, size_t max_bytes) {
  std::string shown;
  while (!text.empty()) {
    const size_t size = PrintableCharacter(text);
    const std::string next = size > 0 ? std::string(text.substr(0, size))
                                      : absl::StrFormat("\\x%02x", text.front() & 0xff);
    if (shown.size() + next.size() > max_bytes) return shown + "...";
    shown += next;
    text.remove_prefix(size > 0 ? size : 1);
  }
  return shown;
}

absl::Status CheckName(std::string_view what, std::string_view name, size_t max_bytes) {
  if (!name.empty() && name.size() <= max_bytes && IsPrintable(name)) {
    return absl::OkStatus();
  }
  if (name.empty() || name.size() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(what), " must have 1 to ", max_bytes, " bytes, not ", name.size()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(what), " '", Printable(name),
                   "' holds control characters or is not UTF-8; use letters and digits"));
}

}  // namespace syncline
