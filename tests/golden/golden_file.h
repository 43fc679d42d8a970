// A file of encodings that earlier versions wrote: one a line, as its name, a tab, and
// the bytes in hexadecimal. Lines are sorted by name.
//
//   GoldenFile goldens(GOLDEN_DATA "/stored.golden");
//   const std::string golden = goldens.Same("residuals", written);
//   EXPECT_EQ(Write(*Read(golden)), golden);
//
// Thread safety: none.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace syncline {

class GoldenFile {
 public:
  explicit GoldenFile(std::string path);

  // Returns the bytes of that name. If there are none, adds `bytes` to the file, and the
  // test fails this time.
  std::string Golden(const std::string& name, std::string_view bytes);
  // Does the same. The test also fails if `bytes` are others.
  std::string Same(const std::string& name, std::string_view bytes);

  const std::map<std::string, std::string>& all() const { return all_; }

 private:
  void Write() const;

  const std::string path_;
  std::map<std::string, std::string> all_;
};

}  // namespace syncline
