#include "comm/compression/transfer_rules.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/nearest.h"
#include "comm/base/status.h"

namespace syncline {
namespace {

std::string_view WithoutSpaces(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

absl::StatusOr<RuleText> ReadRule(std::string_view text) {
  const size_t at = text.find('@');  // names of codecs contain no '@'
  RuleText rule = {.text = text, .codec = WithoutSpaces(text.substr(0, at))};
  if (at == std::string_view::npos) return rule;
  rule.pattern = WithoutSpaces(text.substr(at + 1));
  if (!rule.codec.empty() && !rule.pattern.empty()) return rule;
  return absl::InvalidArgumentError(
      absl::StrCat("rule '", std::string(text), "' has no ",
                   rule.codec.empty() ? "codec before" : "pattern after", " its '@'"));
}

}  // namespace

absl::StatusOr<std::vector<RuleText>> SplitRules(std::string_view text) {
  std::vector<RuleText> rules;
  for (size_t first = 0; first <= text.size();) {
    const size_t end = std::min(text.find(';', first), text.size());
    SYNCLINE_ASSIGN_OR_RETURN(const RuleText rule,
                              ReadRule(WithoutSpaces(text.substr(first, end - first))));
    rules.push_back(rule);
    if (rules.size() > kMaxRules) {
      return absl::InvalidArgumentError(absl::StrCat(
          "more than ", kMaxRules, " rules; let patterns take more tensors"));
    }
    first = end + 1;
  }
  if (rules.size() > 1 && std::ranges::any_of(rules, [](const RuleText& rule) {
        return rule.text.empty();
      })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "one of the rules of '", std::string(text), "' is empty; remove its ';'"));
  }
  for (size_t i = 0; i + 1 < rules.size(); ++i) {
    if (!rules[i].pattern.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "rule '", std::string(rules[i].text),
        "' has no pattern and takes all tensors, so it must be the last, not "
        "before '",
        std::string(rules[i + 1].text), "'"));
  }
  if (rules.back().pattern.empty()) return rules;
  return absl::InvalidArgumentError(absl::StrCat(
      "after rule '", std::string(rules.back().text),
      "' nothing says how the other tensors travel; end with a codec without "
      "'@', as in '",
      std::string(text), ";bf16'"));
}

bool MatchesPattern(std::string_view pattern, std::string_view name) {
  // After a mismatch the last star takes one more character; earlier stars never need to.
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t taken_to = 0;  // end of what the star takes
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken_to = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken_to;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

std::string TransferRules::Where(const Rule& rule) const {
  if (rules_.size() == 1) return absl::StrCat(setting_, ": ");
  return absl::StrCat(setting_, ": rule '", rule.text, "': ");
}

absl::StatusOr<TransferRules> TransferRules::Parse(std::string_view setting,
                                                   std::string_view text) {
  const absl::StatusOr<std::vector<RuleText>> texts = SplitRules(text);
  if (!texts.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(setting), ": ", std::string(texts.status().message())));
  }
  std::vector<Rule> written;
  for (const RuleText& rule : *texts) {
    written.push_back(
        {.text = std::string(rule.text), .pattern = std::string(rule.pattern)});
  }
  TransferRules rules(setting, std::move(written));
  for (size_t i = 0; i < texts->size(); ++i) {
    absl::StatusOr<Transfer> transfer = ParseTransfer((*texts)[i].codec);
    if (!transfer.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          rules.Where(rules.rules_[i]), std::string(transfer.status().message())));
    }
    rules.rules_[i].transfer = *std::move(transfer);
  }
  return rules;
}

const TransferRules::Rule& TransferRules::RuleOf(std::string_view name) const {
  return *std::ranges::find_if(rules_, [&](const Rule& rule) {
    return rule.pattern.empty() || MatchesPattern(rule.pattern, name);
  });
}

// Returns an error that says why `rule` applies to no tensor.
absl::Status TransferRules::NeverApplies(const Rule& rule,
                                         std::span<const Transfer::Shape> tensors) const {
  const auto meant = std::ranges::find_if(tensors, [&](const Transfer::Shape& tensor) {
    return MatchesPattern(rule.pattern, tensor.name);
  });
  if (meant != tensors.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Where(rule), "never applies: rule '", RuleOf(meant->name).text,
                     "' before it takes '", meant->name, "', and the first one counts"));
  }
  std::vector<std::string_view> names;
  for (const Transfer::Shape& tensor : tensors) names.push_back(tensor.name);
  return absl::InvalidArgumentError(absl::StrCat(Where(rule),
                                                 "no tensor of the job has such a name",
                                                 DidYouMean(rule.pattern, names)));
}

absl::StatusOr<std::vector<Transfer>> TransferRules::ForTensors(
    std::span<const Transfer::Shape> tensors) const {
  std::vector<Transfer> transfers;
  std::vector<bool> applies(rules_.size());
  for (const Transfer::Shape& tensor : tensors) {
    const Rule& rule = RuleOf(tensor.name);
    applies[static_cast<size_t>(&rule - rules_.data())] = true;
    absl::StatusOr<Transfer> transfer = rule.transfer.ForTensor(tensor);
    if (!transfer.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Where(rule), "tensor '", tensor.name,
                       "': ", std::string(transfer.status().message())));
    }
    transfers.push_back(*std::move(transfer));
  }
  for (size_t i = 0; i + 1 < rules_.size() && !tensors.empty(); ++i) {
    if (!applies[i]) return NeverApplies(rules_[i], tensors);
  }
  return transfers;
}

}  // namespace syncline
