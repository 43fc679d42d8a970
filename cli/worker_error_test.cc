#include "cli/worker_error.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

TEST(WorkerError, IsNothingWithoutAFileOfTorchs) {
  const std::string path = testing::TempDir() + "/worker_error.json";
  EXPECT_FALSE(ReadWorkerError(path + ".missing"));
  for (const char* content : {"", "no JSON", "[]", "{}", R"({"message": 3})",
                              R"({"message": {"message": []}})"}) {
    std::ofstream(path) << content;
    EXPECT_FALSE(ReadWorkerError(path)) << content;
  }
  std::ofstream(path) << R"({"message": " out of luck "})";
  EXPECT_EQ(ReadWorkerError(path)->message, "out of luck");
  EXPECT_TRUE(ReadWorkerError(path)->traceback.empty());
}

TEST(WorkerError, HasTheEndOfALongTraceback) {
  const std::string path = testing::TempDir() + "/worker_error.json";
  std::string frames;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&frames, "frame ", i, "\\n");
  std::ofstream(path) << R"({"message": {"message": "KeyError: 3", "extraInfo": )"
                      << R"({"py_callstack": ")" << frames << R"(KeyError\u001b"}}})";
  const auto error = ReadWorkerError(path);
  ASSERT_TRUE(error.has_value());
  ASSERT_EQ(error->traceback.size(), 60u);
  EXPECT_EQ(error->traceback.front(), "frame 41");
  EXPECT_EQ(error->traceback.back(), "KeyError\\x1b")
      << "nothing reaches the terminal raw";
}

}  // namespace
}  // namespace syncline
