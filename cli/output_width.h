// Lines for people that fit the terminal, without cutting names short: they are broken
// between words, and tables leave out what matters least.
//
//   const size_t columns = OutputColumns();
//   std::cout << BrokenLine("2026-11-25 13:04:05  worker 1 was dropped: …", columns, 21);
//
// A word, such as the name of a host, that is longer than a line stays whole.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace syncline {

// Of the terminal on standard output; where that is none, as COLUMNS says. 0: no limit.
size_t OutputColumns();

// Of UTF-8, as a terminal counts them.
size_t CharactersOf(std::string_view line);

// So many of its first characters at most.
std::string Clipped(std::string_view line, size_t columns);

// With spaces behind it, at least that wide.
std::string Padded(std::string word, size_t columns);

// Exactly that wide.
inline std::string Fitted(std::string_view word, size_t columns) {
  return Padded(Clipped(word, columns), columns);
}

// Exactly that wide, without its beginning where it is too long: the end is what tells a
// name from others.
std::string FittedAtEnd(const std::string& word, size_t columns);

// `line`, without its end, in lines of at most so many columns, of which all but the
// first begin with `hanging` spaces.
std::string BrokenLine(std::string_view line, size_t columns, size_t hanging);

// As many lines, each of them with its end, broken likewise.
std::string BrokenLines(std::string_view lines, size_t columns, size_t hanging);

// A table whose last column is words, which are broken below each other.
class WordTable {
 public:
  struct Column {
    std::string title;
    enum class Align { kLeft, kRight } align = Align::kLeft;
    // Of a table that is too wide those with the highest go first; 0: never.
    int leave_out = 0;
  };
  // REQUIRES: there is a column.
  explicit WordTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // REQUIRES: as many cells as columns.
  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // With the titles, each line with its end.
  std::string Written(size_t columns) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace syncline
