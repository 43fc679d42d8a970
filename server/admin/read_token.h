// The token of --admin-token-file, which readers of the admin port must show. A program
// sends it in the header "Authorization: Bearer TOKEN". A browser sends it once in a
// form, and then has a cookie. The cookie is derived from the token, which cannot be
// computed from it. It stays valid as long as the token, also when the process restarts.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const ReadToken token, ReadToken::Parse(contents));
//   if (token.IsShownBy(request.authorization) || token.IsInCookies(request.cookie, "c"))
//
// Comparisons take constant time.
//
// Thread safety: immutable.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace syncline {

class ReadToken {
 public:
  // Long enough that it cannot be guessed, and short enough for a request.
  static constexpr size_t kMinBytes = 16;
  static constexpr size_t kMaxBytes = 512;

  // Parses the single line of a file; spaces around it are ignored. Fails with
  // InvalidArgument. The error does not contain the token.
  static absl::StatusOr<ReadToken> Parse(std::string_view contents);

  bool IsSame(std::string_view shown) const;
  // Checks the value of the header Authorization.
  bool IsShownBy(std::string_view authorization) const;
  // Checks the value of the header Cookie, which may have several cookies of that name.
  bool IsInCookies(std::string_view cookies, std::string_view name) const;
  // Checks the body of the login form: token=TOKEN, as browsers encode it.
  bool IsInForm(std::string_view body) const;

  const std::string& cookie() const { return cookie_; }
  // Returns a part of the cookie's name that depends on the token. Browsers send the
  // cookies of a host to all its ports, and keep one of each name.
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
