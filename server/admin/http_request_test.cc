#include "server/admin/http_request.h"

#include "gtest/gtest.h"

namespace syncline {
namespace {

std::string PathOf(std::string_view received) {
  const auto request = ParseHttpRequest(received);
  if (!request.ok()) return "malformed";
  return request->has_value() ? (*request)->path : "incomplete";
}

TEST(HttpRequest, IsThePageThatIsAskedFor) {
  const auto request =
      ParseHttpRequest("HEAD /readyz?verbose=1 HTTP/1.1\r\na: b\r\n\r\n");
  ASSERT_TRUE(request.ok() && request->has_value());
  EXPECT_EQ((*request)->method, "HEAD");
  EXPECT_EQ((*request)->path, "/readyz");
  EXPECT_EQ(PathOf("GET / HTTP/1.0\n\n"), "/");
}

TEST(HttpRequest, IsIncompleteUntilItsHeadersEnd) {
  const std::string_view whole = "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n";
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(PathOf(whole.substr(0, size)), "incomplete") << size;
  }
  EXPECT_EQ(PathOf(whole), "/livez");
}

TEST(HttpRequest, HasTheHeadersThatShowWhoAsks) {
  const auto request = ParseHttpRequest(
      "GET / HTTP/1.1\r\nHost: a\r\nAUTHORIZATION:  Bearer x \r\ncookie: a=b; c=d\r\n"
      "Cookie: later\r\nNo colon\r\naccept:text/html\r\n\r\n");
  ASSERT_TRUE(request.ok() && request->has_value());
  EXPECT_EQ((*request)->authorization, "Bearer x");
  EXPECT_EQ((*request)->cookie, "a=b; c=d");
  EXPECT_EQ((*request)->accept, "text/html");
}

TEST(HttpRequest, HasTheBodyThatItsLengthSays) {
  const std::string head = "POST /login HTTP/1.1\r\nContent-Length: 7\r\n\r\n";
  EXPECT_EQ(PathOf(head + "token="), "incomplete");
  const auto request = ParseHttpRequest(head + "token=xy");
  ASSERT_TRUE(request.ok() && request->has_value());
  EXPECT_EQ((*request)->body, "token=x");
  for (const char* length :
       {"-1", "x", "", "99999999999999999999", "1\r\nContent-Length: 1"}) {
    EXPECT_EQ(PathOf("POST / HTTP/1.1\nContent-Length: " + std::string(length) + "\n\n"),
              "malformed")
        << length;
  }
}

TEST(HttpRequest, RefusesWhatIsNoneAsSoonAsItsFirstLineIsThere) {
  for (const std::string_view line :
       {"\n", "\r\n", "GET\n", "GET /\n", " \n", "  \n", "get / HTTP/1.1\n",
        "GET livez HTTP/1.1\n", "GET / HTTP/2\n", "GET  HTTP/1.1\n",
        "\x16\x03\x01 / HTTP/1.1\n", "PRI * HTTP/2.0\r\n"}) {
    EXPECT_EQ(PathOf(line), "malformed") << line;
  }
}

}  // namespace
}  // namespace syncline
