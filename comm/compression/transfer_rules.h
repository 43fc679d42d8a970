// Strings that give tensors of a job different transfers: rules by name.
//
//   blocks@embed*;bf16@head.*;topk:ratio=0.01
//
// A rule is CODEC@PATTERN, where PATTERN matches tensor names: "*" stands for any
// characters, "?" for one. The first rule that matches a tensor applies. The last rule
// has no pattern and matches all others; a text without patterns is this rule alone.
// Spaces around rules are ignored.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const TransferRules rules,
//                             TransferRules::Parse("push_codec", text));
//   SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Transfer> transfers,
//                             rules.ForTensors(tensors));
//
// Thread safety: these are values.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/compression/transfer.h"

namespace syncline {

// A rule as it was written.
struct RuleText {
  std::string_view text = {};     // the whole rule
  std::string_view codec = {};    // text for ParseTransfer
  std::string_view pattern = {};  // empty: matches all tensors
};

// Limits the time, since each rule is tried for each tensor.
inline constexpr size_t kMaxRules = 256;

// Splits `text` into rules; the views point into it. Fails with InvalidArgument if a rule
// is empty, if the rule without a pattern is missing or not the last, or if there are
// more than kMaxRules.
absl::StatusOr<std::vector<RuleText>> SplitRules(std::string_view text);

bool MatchesPattern(std::string_view pattern, std::string_view name);

class TransferRules {
 public:
  struct Rule {
    std::string text = {};
    std::string pattern = {};
    Transfer transfer = {};
  };

  // Errors begin with `setting`, and name the rule if there are several.
  static absl::StatusOr<TransferRules> Parse(std::string_view setting,
                                             std::string_view text);

  std::span<const Rule> rules() const { return rules_; }

  // Returns the transfers of all tensors of a job, in order; nothing if there are no
  // tensors. Fails with InvalidArgument if a rule applies to no tensor: a name is
  // misspelt, or earlier rules match all of its tensors.
  absl::StatusOr<std::vector<Transfer>> ForTensors(
      std::span<const Transfer::Shape> tensors) const;

  // Returns the beginning of an error, such as "push_codec: rule 'bf16@head.*': ".
  std::string Where(const Rule& rule) const;

 private:
  TransferRules(std::string_view setting, std::vector<Rule> rules)
      : setting_(setting), rules_(std::move(rules)) {}

  const Rule& RuleOf(std::string_view name) const;
  absl::Status NeverApplies(const Rule& rule,
                            std::span<const Transfer::Shape> tensors) const;

  std::string setting_;
  std::vector<Rule> rules_;
};

}  // namespace syncline
