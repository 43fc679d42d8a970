// Strings that say how different tensors of a job travel: rules by name.
//
//   blocks@embed*;bf16@head.*;topk:ratio=0.01
//
// A rule is CODEC@PATTERN, where PATTERN takes tensors by name: "*" stands for any
// characters, "?" for one. The first rule that takes a tensor counts. The last one has no
// pattern and takes all others; a text without patterns is this rule alone. Spaces around
// rules do not count.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const TransferRules rules,
//                             TransferRules::Parse("push_codec", text));
//   SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Transfer> transfers,
//                             rules.ForTensors(tensors));
//
// Thread safety: values.
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
  std::string_view text = {};     // all of it
  std::string_view codec = {};    // ParseTransfer
  std::string_view pattern = {};  // empty: takes all tensors
};

// Each is tried for each tensor.
inline constexpr size_t kMaxRules = 256;

// InvalidArgument: a rule is empty, the one without a pattern is missing or not the last,
// or there are more than kMaxRules. The views are into `text`.
absl::StatusOr<std::vector<RuleText>> SplitRules(std::string_view text);

bool MatchesPattern(std::string_view pattern, std::string_view name);

class TransferRules {
 public:
  struct Rule {
    std::string text = {};
    std::string pattern = {};
    Transfer transfer = {};
  };

  // Errors begin with `setting` and name the rule, if there are several.
  static absl::StatusOr<TransferRules> Parse(std::string_view setting,
                                             std::string_view text);

  std::span<const Rule> rules() const { return rules_; }

  // The transfers of all tensors of a job, in order. InvalidArgument if a rule would take
  // none: a name is misspelt, or earlier rules take them all. Of no tensors, nothing.
  absl::StatusOr<std::vector<Transfer>> ForTensors(
      std::span<const Transfer::Shape> tensors) const;

  // "push_codec: rule 'bf16@head.*': "
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
