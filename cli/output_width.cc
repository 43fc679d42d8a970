#include "cli/output_width.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

// Number of spaces between columns.
constexpr size_t kGap = 2;
// If the last column is narrower than this, its further lines begin at kIndent.
constexpr size_t kFewestForWords = 20;
constexpr size_t kIndent = 8;
constexpr absl::string_view kCut = "..";

bool BeginsCharacter(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

// Returns the number of bytes of the first `characters` characters.
size_t BytesOf(std::string_view text, size_t characters) {
  size_t bytes = 0;
  for (; bytes < text.size(); ++bytes) {
    if (BeginsCharacter(text[bytes]) && characters-- == 0) break;
  }
  return bytes;
}

size_t WidthOf(const std::vector<std::vector<std::string>>& rows, size_t column) {
  size_t width = 0;
  for (const auto& row : rows) width = std::max(width, CharactersOf(row[column]));
  return width;
}

}  // namespace

size_t OutputColumns() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* said = std::getenv("COLUMNS");
  size_t columns = 0;
  return said != nullptr && absl::SimpleAtoi(said, &columns) ? columns : 0;
}

size_t CharactersOf(std::string_view line) {
  return static_cast<size_t>(std::ranges::count_if(line, BeginsCharacter));
}

std::string Clipped(std::string_view line, size_t columns) {
  return std::string(line.substr(0, BytesOf(line, columns)));
}

std::string Padded(std::string word, size_t columns) {
  const size_t characters = CharactersOf(word);
  return word.append(columns - std::min(columns, characters), ' ');
}

std::string FittedAtEnd(const std::string& word, size_t columns) {
  const size_t characters = CharactersOf(word);
  if (characters <= columns) return Padded(word, columns);
  const size_t kept = columns - std::min(columns, kCut.size());
  return absl::StrCat(kCut, word.substr(BytesOf(word, characters - kept)));
}

std::string BrokenLine(std::string_view line, size_t columns, size_t hanging) {
  if (columns == 0) return std::string(line);
  hanging = std::min(hanging, columns / 2);
  const std::string indent(hanging, ' ');
  std::string broken;
  size_t room = columns;
  while (CharactersOf(line) > room) {
    const size_t first_word = line.find_first_not_of(' ');
    size_t end = line.rfind(' ', BytesOf(line, room));
    if (end == std::string_view::npos || end < first_word) {
      end = line.find(' ', first_word);  // a word longer than the line
    }
    if (end == std::string_view::npos) break;
    const size_t next = line.find_first_not_of(' ', end);
    if (next == std::string_view::npos) break;
    const size_t last = line.find_last_not_of(' ', end);
    absl::StrAppend(&broken, std::string(line.substr(0, last + 1)), "\n", indent);
    line.remove_prefix(next);
    room = columns - hanging;
  }
  return broken.append(line);
}

std::string BrokenLines(std::string_view lines, size_t columns, size_t hanging) {
  std::string broken;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    absl::StrAppend(&broken, BrokenLine(lines.substr(0, end), columns, hanging), "\n");
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return broken;
}

std::string WordTable::Written(size_t columns) const {
  std::vector<std::vector<std::string>> rows = {{}};
  for (const Column& column : columns_) rows.front().push_back(column.title);
  rows.insert(rows.end(), rows_.begin(), rows_.end());
  std::vector<size_t> widths;
  std::vector<size_t> shown;  // all columns except the last one, which holds words
  size_t words_at = 0;
  for (size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(WidthOf(rows, i));
    if (i + 1 == columns_.size()) break;
    shown.push_back(i);
    words_at += widths[i] + kGap;
  }
  const size_t room_for_words = std::min(widths.back(), kFewestForWords);
  while (columns > 0 && words_at + room_for_words > columns) {
    const auto least = std::ranges::max_element(
        shown, {}, [&](size_t column) { return columns_[column].leave_out; });
    if (least == shown.end() || columns_[*least].leave_out == 0) break;
    words_at -= widths[*least] + kGap;
    shown.erase(least);
  }
  const bool has_room = words_at + room_for_words <= columns;
  std::string table;
  for (const auto& row : rows) {
    std::string line;
    for (const size_t column : shown) {
      const std::string padding(widths[column] - CharactersOf(row[column]), ' ');
      const bool is_left = columns_[column].align == Column::Align::kLeft;
      absl::StrAppend(&line, is_left ? "" : padding, row[column], is_left ? padding : "",
                      std::string(kGap, ' '));
    }
    absl::StrAppend(&table,
                    BrokenLine(line + row.back(), columns, has_room ? words_at : kIndent),
                    "\n");
  }
  return table;
}

}  // namespace syncline
