#include "server/store/memory_store.h"

#include "server/store/state_store_contract.h"

namespace syncline {
namespace {

INSTANTIATE_TEST_SUITE_P(Memory, StateStoreContract,
                         testing::Values(StateStoreFactory([] {
                           return std::make_unique<MemoryStore>();
                         })));

}  // namespace
}  // namespace syncline
