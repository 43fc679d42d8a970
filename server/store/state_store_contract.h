// The contract suite of StateStore (state_store_contract_test.cc). An implementation's
// test names a factory and instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, StateStoreContract,
//                            testing::Values(MakeMemoryStore));
#pragma once

#include <functional>
#include <memory>

#include "gtest/gtest.h"
#include "server/store/state_store.h"

namespace syncline {

using StateStoreFactory = std::function<std::unique_ptr<StateStore>()>;

class StateStoreContract : public testing::TestWithParam<StateStoreFactory> {
 protected:
  void SetUp() override {
    store_ = GetParam()();
    ASSERT_NE(store_, nullptr);
  }

  std::unique_ptr<StateStore> store_;
};

}  // namespace syncline
