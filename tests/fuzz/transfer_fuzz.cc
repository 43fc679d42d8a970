// Fuzzes the text of a codec, as users and job settings write it.
#include <cmath>
#include <limits>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "tests/fuzz/fuzz.h"

namespace syncline::fuzz {
namespace {

constexpr uint32_t kElements = 300;

// Checks that a codec which was created works, with any options.
void CheckWorks(const Codec& codec) {
  Bytes encoded(codec.MaxEncodedBytes(kElements));
  encoded.resize(codec.Encode(SomeValues(kElements, 1), {}, {}, encoded));
  SYNCLINE_CHECK(CheckCodec(codec, encoded, kElements));
}

void CheckText(std::string_view text) {
  const absl::StatusOr<Transfer> transfer = ParseTransfer(text);
  if (!transfer.ok()) {
    SYNCLINE_CHECK(absl::IsInvalidArgument(transfer.status()));
    SYNCLINE_CHECK(!transfer.status().message().empty());
    return;
  }
  SYNCLINE_CHECK(transfer->codec != nullptr);
  CheckWorks(*transfer->codec);
  const std::string canonical = CanonicalTransfer(text);
  SYNCLINE_CHECK(CanonicalTransfer(canonical) == canonical);
  const absl::StatusOr<Transfer> again = ParseTransfer(canonical);
  SYNCLINE_CHECK(again.ok());
  SYNCLINE_CHECK(again->memory == transfer->memory);
  SYNCLINE_CHECK(again->what.min_elements == transfer->what.min_elements);
  SYNCLINE_CHECK(again->what.vectors == transfer->what.vectors);
  SYNCLINE_CHECK(again->codec->id() == transfer->codec->id());
  SYNCLINE_CHECK(again->codec->MaxEncodedBytes(kElements) ==
                 transfer->codec->MaxEncodedBytes(kElements));
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<std::string> texts = TransferTexts();
  // Numbers with many digits, which were cut to six by an earlier version.
  texts.emplace_back("onebit:min_elements=1234567");
  texts.emplace_back("onebit:decay=0.99999999");
  for (const TransferPreset& preset : TransferPresets()) {
    const std::string name(preset.name);
    std::string all = name;
    for (const OptionSpec& option : preset.options) {
      const std::string key(option.name);
      texts.push_back(absl::StrCat(name, ":", key, "=", option.least));
      texts.push_back(absl::StrCat(name, ":", key, "=", option.most));
      absl::StrAppend(&all, all == name ? ":" : ",", key, "=", option.standard);
    }
    texts.push_back(all);
    for (const char* memory : {"none", "ef", "dgc", "ef21"}) {
      texts.push_back(absl::StrCat(name, ":memory=", memory));
    }
  }
  std::vector<Bytes> seeds;
  for (const std::string& text : texts)
    Append(seeds.emplace_back(), std::as_bytes(std::span(text)));
  return seeds;
}

}  // namespace syncline::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  syncline::fuzz::CheckText({reinterpret_cast<const char*>(data), size});
  return 0;
}
