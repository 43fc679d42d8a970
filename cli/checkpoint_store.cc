#include "cli/checkpoint_store.h"

#include <cstdlib>
#include <utility>

#include "comm/base/status.h"
#include "server/checkpoint/directory_store.h"
#include "server/checkpoint/s3/s3_store.h"

namespace syncline {
namespace {

absl::StatusOr<S3Settings> FindBucket(const std::string& where) {
  return FindS3Settings(where, [](const char* name) { return std::getenv(name); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlobStore>> OpenCheckpointStore(const std::string& where) {
  if (!IsS3Location(where)) return OpenDirectoryStore(where);
  SYNCLINE_ASSIGN_OR_RETURN(const S3Settings settings, FindBucket(where));
  return OpenS3Store(settings, {});
}

absl::StatusOr<std::unique_ptr<AwaitedStore>> AwaitCheckpointStore(
    const std::string& where, const AwaitedBucket& about) {
  SYNCLINE_ASSIGN_OR_RETURN(const S3Settings settings, FindBucket(where));
  return std::make_unique<AwaitedStore>(AwaitedStoreOptions{
      .where = settings.Describe(),
      .open =
          [settings, hurry = about.hurry] {
            return OpenS3Store(settings, {.client = {.hurry = hurry}});
          },
      .on_change = [said = about.on_change, name = settings.Describe()](
                       const absl::Status& status) { said(name, status); },
      .ends = about.hurry,
      .patience = about.patience});
}

absl::StatusOr<std::unique_ptr<BlobStore>> OpenExistingCheckpointStore(
    const std::string& where) {
  if (!IsS3Location(where)) return OpenExistingDirectoryStore(where);
  SYNCLINE_ASSIGN_OR_RETURN(const S3Settings settings, FindBucket(where));
  return OpenExistingS3Store(settings, {});
}

absl::Status CheckCheckpointStore(const std::string& where) {
  return IsS3Location(where) ? FindBucket(where).status() : absl::OkStatus();
}

}  // namespace syncline
