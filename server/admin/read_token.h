// The token of --admin-token-file, which whoever reads the admin port must show: a program
// in the header "Authorization: Bearer TOKEN", a browser once in a form, for which it gets
// a cookie. The cookie is derived from the token and is not it: who finds one cannot log
// in elsewhere, it holds for as long as the token does, also when the process starts anew.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const ReadToken token, ReadToken::Parse(contents));
//   if (token.IsShownBy(request.authorization) || token.IsInCookies(request.cookie, "c"))
//
// Comparisons take the same time whatever is compared. Immutable; any thread.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace syncline {

class ReadToken {
 public:
  // So long that nobody guesses it, so short that it fits into a request.
  static constexpr size_t kMinBytes = 16;
  static constexpr size_t kMaxBytes = 512;

  // The one line of a file; spaces around it do not count. InvalidArgument without the
  // token in it otherwise.
  static absl::StatusOr<ReadToken> Parse(std::string_view contents);

  bool IsSame(std::string_view shown) const;
  // The value of the header Authorization.
  bool IsShownBy(std::string_view authorization) const;
  // That of the header Cookie, which may hold several of that name.
  bool IsInCookies(std::string_view cookies, std::string_view name) const;
  // Of the body of the login form: token=TOKEN, as browsers encode it.
  bool IsInForm(std::string_view body) const;

  const std::string& cookie() const { return cookie_; }
  // For the cookie's name: a browser sends the cookies of a host to all its ports, and keeps
  // one of each name.
  const std::string& mark() const { return mark_; }

 private:
  using Digest = std::array<unsigned char, 32>;

  explicit ReadToken(std::string_view token);
  static Digest DigestOf(std::string_view bytes);

  Digest digest_;
  std::string cookie_;
  Digest cookie_digest_;
  std::string mark_;
};

}  // namespace syncline
