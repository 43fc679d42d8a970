#include "worker/client/gradient_view.h"

#include "comm/base/check.h"

namespace syncline {

std::span<const float> GradientView::AsFloats(size_t first, size_t count) const {
  SYNCLINE_CHECK(memory_.dtype == DType::kF32);
  return {static_cast<const float*>(memory_.data) + first, count};
}

std::span<const float> GradientView::Read(size_t first, size_t count,
                                          std::span<float> scratch) const {
  if (memory_.dtype == DType::kF32) return AsFloats(first, count);
  const std::span<float> values = scratch.first(count);
  Widen({.data = Bytes(first, count).data(), .dtype = memory_.dtype}, values);
  return values;
}

}  // namespace syncline
