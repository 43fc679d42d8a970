// The shape of a tensor, as optimizers use it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace syncline {

class TensorShape {
 public:
  explicit TensorShape(std::span<const uint64_t> sizes)
      : sizes_(sizes.begin(), sizes.end()) {}

  size_t dimensions() const { return sizes_.size(); }
  std::span<const uint64_t> sizes() const { return sizes_; }
  uint64_t elements() const { return Product(0); }

  // Returns the size of the first dimension: one row for each output of a layer. A tensor
  // of fewer than two dimensions is one row.
  uint64_t rows() const { return dimensions() < 2 ? 1 : sizes_[0]; }
  uint64_t row_elements() const { return dimensions() < 2 ? elements() : Product(1); }

  // The last two dimensions are matrices, and the others count them. A tensor of fewer
  // than two dimensions is one row.
  uint64_t matrix_columns() const {
    return dimensions() < 2 ? elements() : sizes_.back();
  }
  uint64_t matrix_rows() const { return dimensions() < 2 ? 1 : sizes_[dimensions() - 2]; }

 private:
  uint64_t Product(size_t from) const {
    uint64_t product = 1;
    for (size_t i = from; i < sizes_.size(); ++i) product *= sizes_[i];
    return product;
  }

  std::vector<uint64_t> sizes_;
};

}  // namespace syncline
