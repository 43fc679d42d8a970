#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/base/check.h"
#include "comm/codec/codec.h"

namespace syncline {
namespace {

std::string Join(const std::vector<std::string_view>& names) {
  return absl::StrJoin(names, ", ", [](std::string* out, std::string_view name) {
    out->append(name.data(), name.size());
  });
}

}  // namespace

void CodecRegistry::Register(std::unique_ptr<Codec> codec) {
  SYNCLINE_CHECK(codec != nullptr);
  SYNCLINE_CHECK(!Find(codec->id()).ok() && !FindByName(codec->name()).ok());
  codecs_.push_back(std::move(codec));
}

absl::StatusOr<const Codec*> CodecRegistry::Find(CodecId id) const {
  for (const auto& codec : codecs_) {
    if (codec->id() == id) return codec.get();
  }
  return absl::NotFoundError(absl::StrCat("no codec has id ", static_cast<int>(id),
                                          "; this build has: ", Join(Names())));
}

absl::StatusOr<const Codec*> CodecRegistry::FindByName(std::string_view name) const {
  for (const auto& codec : codecs_) {
    if (codec->name() == name) return codec.get();
  }
  return absl::NotFoundError(absl::StrCat("no codec is named '", std::string(name),
                                          "'; this build has: ", Join(Names())));
}

std::vector<std::string_view> CodecRegistry::Names() const {
  std::vector<std::string_view> names;
  names.reserve(codecs_.size());
  for (const auto& codec : codecs_) names.push_back(codec->name());
  return names;
}

}  // namespace syncline
