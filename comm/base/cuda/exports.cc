#include "comm/base/cuda/exports.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "comm/base/unique_fd.h"

namespace syncline {
namespace {

#if defined(__x86_64__)
constexpr int kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr int kMachine = EM_AARCH64;
#else
#error "say what ELF calls this machine"
#endif

// Maximum size of a table of names or symbols. libtorch_cuda.so has 30 MiB of names.
constexpr uint64_t kMaxTableBytes = uint64_t{1} << 30;

constexpr char kCutShort[] = " is cut short or damaged: ";

// An open file. Reads outside the file are refused.
class File {
 public:
  explicit File(const std::string& path)
      // O_NONBLOCK, so that opening a pipe without a writer does not block.
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), error_(errno) {}

  // Returns "" if the file has bytes, otherwise an error.
  std::string Check() {
    struct stat found = {};
    if (!fd_.valid()) return std::string(" cannot be read: ") + std::strerror(error_);
    if (fstat(fd_.get(), &found) != 0 || !S_ISREG(found.st_mode)) return " is not a file";
    size_ = static_cast<uint64_t>(found.st_size);
    return size_ == 0 ? " is empty" : "";
  }

  bool Has(uint64_t offset, uint64_t bytes) const {
    return offset <= size_ && bytes <= size_ - offset;
  }

  // Returns `count` items of a table, or nothing if the file is too short.
  template <typename Item>
  std::vector<Item> Table(uint64_t offset, uint64_t count) const {
    if (count == 0 || count > kMaxTableBytes / sizeof(Item)) return {};
    if (!Has(offset, count * sizeof(Item))) return {};
    std::vector<Item> items(count);
    uint64_t done = 0;
    while (done < count * sizeof(Item)) {
      const ssize_t read =
          pread(fd_.get(), reinterpret_cast<char*>(items.data()) + done,
                count * sizeof(Item) - done, static_cast<off_t>(offset + done));
      if (read < 0 && errno == EINTR) continue;
      if (read <= 0) return {};
      done += static_cast<uint64_t>(read);
    }
    return items;
  }

 private:
  const UniqueFd fd_;
  const int error_;
  uint64_t size_ = 0;
};

std::string CheckHeader(const Elf64_Ehdr& header) {
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return " is not a shared library: it does not begin like an ELF file";
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      header.e_machine != kMachine) {
    return " is for another machine: ELF calls it " + std::to_string(header.e_machine) +
           ", and this one " + std::to_string(kMachine) + ", 64 bits, little-endian";
  }
  if (header.e_type != ET_DYN) return " is an ELF file, but not a shared library";
  if (header.e_phentsize != sizeof(Elf64_Phdr) ||
      header.e_shentsize != sizeof(Elf64_Shdr)) {
    return std::string(kCutShort) + "its headers have the wrong size";
  }
  return "";
}

// Checks that the file contains everything that is loaded from it. Access to missing
// pages would kill the process.
std::string CheckSegments(const File& file, const Elf64_Ehdr& header) {
  const auto segments = file.Table<Elf64_Phdr>(header.e_phoff, header.e_phnum);
  if (segments.empty()) return std::string(kCutShort) + "it has no program headers";
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type == PT_LOAD && !file.Has(segment.p_offset, segment.p_filesz)) {
      return std::string(kCutShort) + "a segment extends beyond its end";
    }
  }
  return "";
}

bool Defines(const File& file, const Elf64_Shdr& symbols, const Elf64_Shdr& names,
             std::string_view wanted) {
  const std::vector<char> text = file.Table<char>(names.sh_offset, names.sh_size);
  for (const Elf64_Sym& symbol :
       file.Table<Elf64_Sym>(symbols.sh_offset, symbols.sh_size / sizeof(Elf64_Sym))) {
    if (symbol.st_shndx == SHN_UNDEF || symbol.st_name >= text.size()) continue;
    const char* const name = text.data() + symbol.st_name;
    if (std::string_view(name, strnlen(name, text.size() - symbol.st_name)) == wanted) {
      return true;
    }
  }
  return false;
}

std::string CheckSymbols(const File& file, const Elf64_Ehdr& header,
                         const std::string& wanted) {
  const auto sections = file.Table<Elf64_Shdr>(header.e_shoff, header.e_shnum);
  if (sections.empty()) return std::string(kCutShort) + "it has no section headers";
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_DYNSYM || section.sh_link >= sections.size()) continue;
    if (Defines(file, section, sections[section.sh_link], wanted)) return "";
  }
  return " is not a Syncline CUDA module: it exports no " + wanted;
}

}  // namespace

std::string WhyNotExported(const std::string& path, const std::string& symbol) {
  File file(path);
  std::string what = file.Check();
  if (!what.empty()) return path + what;
  const auto header = file.Table<Elf64_Ehdr>(0, 1);
  if (header.empty()) return path + " is not a shared library: it is too short";
  what = CheckHeader(header[0]);
  if (what.empty()) what = CheckSegments(file, header[0]);
  if (what.empty()) what = CheckSymbols(file, header[0], symbol);
  return what.empty() ? "" : path + what;
}

}  // namespace syncline
