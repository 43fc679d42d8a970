#include "comm/base/cuda/exports.h"

#include <elf.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "comm/base/cuda/probe.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kSymbol[] = "SynclineCudaDescribe";

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Each test has a file of its own, made from the fake module or from arbitrary bytes.
class CudaExports : public testing::Test {
 protected:
  CudaExports() { std::filesystem::remove_all(path_); }
  ~CudaExports() override { std::filesystem::remove_all(path_); }

  std::string WhyNot(const std::string& contents) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << contents;
    return WhyNotExported(path_, kSymbol);
  }

  // Checks the fake module with a changed header.
  template <typename Change>
  std::string WhyNotWith(const Change& change) const {
    std::string contents = module_;
    Elf64_Ehdr header;
    std::memcpy(&header, contents.data(), sizeof header);
    change(header, contents);
    std::memcpy(contents.data(), &header, sizeof header);
    return WhyNot(contents);
  }

  const std::string path_ =
      testing::TempDir() + "/exports_" + std::to_string(getpid()) + ".so";
  const std::string module_ = Contents(SYNCLINE_TEST_FAKE_MODULE);
};

TEST_F(CudaExports, FindsWhatAModuleExports) {
  EXPECT_THAT(WhyNotExported(SYNCLINE_TEST_FAKE_MODULE, kSymbol), IsEmpty());
  EXPECT_THAT(WhyNot(module_), IsEmpty());
}

TEST_F(CudaExports, WhatALibraryImportsItDoesNotExport) {
  EXPECT_THAT(
      WhyNotExported(SYNCLINE_TEST_DEADLY_LIBRARY, kSymbol),
      HasSubstr("is not a Syncline CUDA module: it exports no SynclineCudaDescribe"));
}

TEST_F(CudaExports, ASymbolIsTheWholeName) {
  EXPECT_THAT(WhyNotExported(SYNCLINE_TEST_FAKE_MODULE, "SynclineCudaDescrib"),
              HasSubstr("exports no"));
  EXPECT_THAT(WhyNotExported(SYNCLINE_TEST_FAKE_MODULE, "CudaDescribe"),
              HasSubstr("exports no"));
}

TEST_F(CudaExports, SaysWhatAFileIsInstead) {
  EXPECT_EQ(WhyNot(""), path_ + " is empty");
  EXPECT_THAT(WhyNot("a few words"), HasSubstr("too short"));
  EXPECT_THAT(WhyNot(std::string(1000, 'x')),
              HasSubstr("does not begin like an ELF file"));
  EXPECT_THAT(WhyNotExported("/proc/self/exe", kSymbol), HasSubstr("exports no"));
  EXPECT_THAT(WhyNotExported(testing::TempDir(), kSymbol), HasSubstr("is not a file"));
  EXPECT_THAT(WhyNotExported("/nonexistent.so", kSymbol),
              StartsWith("/nonexistent.so cannot be read: No such file"));
}

TEST_F(CudaExports, DoesNotWaitForAPipe) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(WhyNotExported(path_, kSymbol), HasSubstr("is not a file"));
}

TEST_F(CudaExports, RefusesLibrariesOfOtherMachines) {
  const auto other = HasSubstr("is for another machine");
  EXPECT_THAT(WhyNotWith([](Elf64_Ehdr& header, std::string&) { header.e_machine = 9; }),
              other);
  EXPECT_THAT(WhyNotWith([](Elf64_Ehdr& header, std::string&) {
                header.e_ident[EI_CLASS] = ELFCLASS32;
              }),
              other);
  EXPECT_THAT(WhyNotWith([](Elf64_Ehdr& header, std::string&) {
                header.e_ident[EI_DATA] = ELFDATA2MSB;
              }),
              other);
  EXPECT_THAT(
      WhyNotWith([](Elf64_Ehdr& header, std::string&) { header.e_type = ET_REL; }),
      HasSubstr("not a shared library"));
}

TEST_F(CudaExports, RefusesWhatLiesOutsideOfTheFile) {
  const auto damaged = HasSubstr("is cut short or damaged");
  constexpr uint64_t kFar = ~uint64_t{0};
  EXPECT_THAT(WhyNotWith([](Elf64_Ehdr& header, std::string&) { header.e_shoff = kFar; }),
              damaged);
  EXPECT_THAT(WhyNotWith([](Elf64_Ehdr& header, std::string&) { header.e_phoff = kFar; }),
              damaged);
  EXPECT_THAT(
      WhyNotWith([](Elf64_Ehdr& header, std::string&) { header.e_phentsize = 1; }),
      damaged);
  EXPECT_THAT(WhyNotWith([](Elf64_Ehdr& header, std::string& contents) {
                // The loaded part ends one byte beyond the file.
                for (int i = 0; i < header.e_phnum; ++i) {
                  Elf64_Phdr segment;
                  char* const at = contents.data() + header.e_phoff + i * sizeof(segment);
                  std::memcpy(&segment, at, sizeof segment);
                  if (segment.p_type != PT_LOAD) continue;
                  segment.p_filesz = contents.size() - segment.p_offset + 1;
                  std::memcpy(at, &segment, sizeof segment);
                  break;
                }
              }),
              HasSubstr("a segment extends beyond its end"));
}

TEST_F(CudaExports, RefusesAModuleThatWasCutAnywhere) {
  const size_t stride = 1 + module_.size() / 200;
  for (size_t bytes = 0; bytes < module_.size(); bytes += stride) {
    EXPECT_THAT(WhyNot(module_.substr(0, bytes)), Not(IsEmpty())) << bytes;
    EXPECT_FALSE(ProbeCudaModule(path_).loaded) << bytes;
  }
  EXPECT_THAT(WhyNot(module_.substr(0, module_.size() - 1)), Not(IsEmpty()));
}

TEST_F(CudaExports, AnyByteOfTheTablesMayBeWrong) {
  for (const size_t begin : {size_t{0}, module_.size() - module_.size() / 4}) {
    for (size_t at = begin; at < begin + module_.size() / 4; at += 29) {
      std::string damaged = module_;
      damaged[at] = static_cast<char>(~damaged[at]);
      WhyNot(damaged);  // may return anything, but must return
    }
  }
}

}  // namespace
}  // namespace syncline
