#include "server/checkpoint/directory_store.h"

#include "comm/base/temp_directory.h"
#include "server/checkpoint/blob_store_contract.h"

namespace syncline {
namespace {

class Directory final : public BlobPlace {
 public:
  std::unique_ptr<BlobStore> Open() override {
    return *OpenDirectoryStore(directory_.path());
  }

 private:
  TempDirectory directory_;
};

INSTANTIATE_TEST_SUITE_P(Directory, BlobStoreContract,
                         testing::Values([] { return std::make_unique<Directory>(); }));

}  // namespace
}  // namespace syncline
