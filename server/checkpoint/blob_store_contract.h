// The contract suite of BlobStore (blob_store_contract_test.cc). An implementation's test
// names a factory and instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Directory, BlobStoreContract, testing::Values(MakePlace));
#pragma once

#include <functional>
#include <memory>

#include "gtest/gtest.h"
#include "server/checkpoint/blob_store.h"

namespace syncline {

// A place that holds blobs. Several stores can look at the same place.
class BlobPlace {
 public:
  virtual ~BlobPlace() = default;
  // Returns a new store for this place, as another process would open it.
  virtual std::unique_ptr<BlobStore> Open() = 0;
};

using BlobPlaceFactory = std::function<std::unique_ptr<BlobPlace>()>;

class BlobStoreContract : public testing::TestWithParam<BlobPlaceFactory> {
 protected:
  void SetUp() override {
    place_ = GetParam()();
    store_ = place_->Open();
    ASSERT_NE(store_, nullptr);
  }

  std::unique_ptr<BlobPlace> place_;
  std::unique_ptr<BlobStore> store_;
};

}  // namespace syncline
