// Fits lines to the terminal without truncating names. Lines are wrapped between words,
// and tables omit their least important columns.
//
//   const size_t columns = OutputColumns();
//   std::cout << BrokenLine("2026-11-25 13:04:05  worker 1 was dropped: …", columns, 21);
//
// A word that is longer than a line, such as a host name, stays whole.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace syncline {

// Returns the width of the terminal on standard output. Without a terminal: COLUMNS. 0:
// no limit.
size_t OutputColumns();

// Returns the number of characters of UTF-8 text, as a terminal counts them.
size_t CharactersOf(std::string_view line);

// Returns at most the first `columns` characters.
std::string Clipped(std::string_view line, size_t columns);

// Appends spaces up to a width of `columns`.
std::string Padded(std::string word, size_t columns);

// Returns exactly `columns` characters: clipped, or padded with spaces.
inline std::string Fitted(std::string_view word, size_t columns) {
  return Padded(Clipped(word, columns), columns);
}

// Returns exactly `columns` characters. If the name is too long, omits its beginning,
// since the end distinguishes names.
std::string FittedAtEnd(const std::string& word, size_t columns);

// Wraps `line`, without its newline, to lines of at most `columns` characters. All but
// the first begin with `hanging` spaces.
std::string BrokenLine(std::string_view line, size_t columns, size_t hanging);

// Wraps several lines, each with its newline, the same way.
std::string BrokenLines(std::string_view lines, size_t columns, size_t hanging);

// A table whose last column is text, which is wrapped within its column.
class WordTable {
 public:
  struct Column {
    std::string title;
    enum class Align { kLeft, kRight } align = Align::kLeft;
    // If the table is too wide, columns with the highest number are omitted first. 0:
    // never.
    int leave_out = 0;
  };
  // REQUIRES: at least one column.
  explicit WordTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // REQUIRES: as many cells as columns.
  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // Returns the table with titles, at most `columns` wide. Each line has its newline.
  std::string Written(size_t columns) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace syncline
