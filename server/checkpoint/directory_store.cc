#include "server/checkpoint/directory_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/base/unique_fd.h"

namespace syncline {
namespace {

namespace fs = std::filesystem;

constexpr char kUnfinished[] = ".unfinished";

constexpr int kMaxDepth = 3;  // job folder, checkpoint folder, file

// After this many bytes, Append asks the kernel to start writing them, so that little is
// left for the sync at the end.
constexpr uint64_t kFlushBytes = uint64_t{16} << 20;

absl::Status Failed(const char* what, const fs::path& path, int error) {
  const std::string where =
      absl::StrCat("cannot ", what, " ", path.string(), ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(where);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(
          absl::StrCat(where, "; free space there, or keep fewer checkpoints"));
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(absl::StrCat(where, "; check its permissions"));
    default:
      return absl::InternalError(where);
  }
}

absl::Status SyncFolder(const fs::path& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) return Failed("sync", path, errno);
  return absl::OkStatus();
}

// Makes the folders of `path` below `root`, and syncs the parent of each.
absl::Status MakeFolders(const fs::path& root, const fs::path& path) {
  if (path == root || path.empty()) return absl::OkStatus();
  std::error_code error;
  if (fs::is_directory(path, error)) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(MakeFolders(root, path.parent_path()));
  if (mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
    return Failed("make", path, errno);
  }
  return SyncFolder(path.parent_path());
}

class FileWriter final : public BlobWriter {
 public:
  FileWriter(fs::path path, UniqueFd fd, uint64_t end)
      : path_(std::move(path)),
        unfinished_(absl::StrCat(path_.string(), kUnfinished)),
        fd_(std::move(fd)),
        end_(end) {}
  ~FileWriter() override {
    if (!finished_) unlink(unfinished_.c_str());
  }

  absl::Status Append(ByteView bytes) override {
    SYNCLINE_RETURN_IF_ERROR(WriteAt(end_, bytes));
    end_ += bytes.size();
    if (end_ - flushed_ >= kFlushBytes) {
      // This is only a hint to the kernel; errors show at the sync.
      (void)sync_file_range(fd_.get(), static_cast<off64_t>(flushed_),
                            static_cast<off64_t>(end_ - flushed_), SYNC_FILE_RANGE_WRITE);
      flushed_ = end_;
    }
    return absl::OkStatus();
  }

  absl::Status Finish(ByteView head) override {
    SYNCLINE_RETURN_IF_ERROR(WriteAt(0, head));
    if (fsync(fd_.get()) != 0) return Failed("sync", path_, errno);
    if (rename(unfinished_.c_str(), path_.c_str()) != 0) {
      return Failed("rename to", path_, errno);
    }
    finished_ = true;
    return SyncFolder(path_.parent_path());
  }

 private:
  absl::Status WriteAt(uint64_t offset, ByteView bytes) {
    while (!bytes.empty()) {
      const ssize_t written =
          pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return Failed("write", path_, errno);
      offset += static_cast<uint64_t>(written);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  const fs::path path_;
  const std::string unfinished_;
  const UniqueFd fd_;
  uint64_t end_;
  uint64_t flushed_ = 0;
  bool finished_ = false;
};

class DirectoryStore final : public BlobStore {
 public:
  explicit DirectoryStore(fs::path root) : root_(std::move(root)) {}

  absl::StatusOr<std::vector<Blob>> List(const std::string& folder) override {
    std::vector<Blob> blobs;
    std::error_code error;
    fs::recursive_directory_iterator entry(
        root_ / folder, fs::directory_options::follow_directory_symlink, error);
    if (error == std::errc::no_such_file_or_directory) return blobs;
    for (; !error && entry != fs::recursive_directory_iterator();
         entry.increment(error)) {
      // A symbolic link may lead to a folder above itself.
      if (entry.depth() >= kMaxDepth) entry.disable_recursion_pending();
      struct stat about = {};  // another process may have deleted it meanwhile
      if (stat(entry->path().c_str(), &about) != 0 || !S_ISREG(about.st_mode)) continue;
      blobs.push_back({.name = entry->path().lexically_relative(root_),
                       .bytes = static_cast<uint64_t>(about.st_size),
                       .written = absl::TimeFromTimespec(about.st_mtim)});
    }
    if (error) return Failed("list", root_ / folder, error.value());
    std::ranges::sort(blobs, {}, &Blob::name);
    return blobs;
  }

  absl::Status Read(const std::string& name, uint64_t offset,
                    MutableByteView out) override {
    const fs::path path = root_ / name;
    // O_NONBLOCK: opening a named pipe would otherwise block.
    const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (!fd.valid()) return Failed("open", path, errno);
    struct stat about = {};
    if (fstat(fd.get(), &about) != 0) return Failed("open", path, errno);
    if (!S_ISREG(about.st_mode)) {
      return absl::DataLossError(absl::StrCat(path.string(), " is not a regular file"));
    }
    while (!out.empty()) {
      const ssize_t got =
          pread(fd.get(), out.data(), out.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Failed("read", path, errno);
      if (got == 0) {
        return absl::DataLossError(
            absl::StrCat(path.string(), " ends at byte ", offset, ": it was cut off"));
      }
      offset += static_cast<uint64_t>(got);
      out = out.subspan(static_cast<size_t>(got));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<BlobWriter>> Create(const std::string& name,
                                                     size_t head_bytes) override {
    const fs::path path = root_ / name;
    SYNCLINE_RETURN_IF_ERROR(MakeFolders(root_, path.parent_path()));
    const std::string unfinished = absl::StrCat(path.string(), kUnfinished);
    UniqueFd fd(open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!fd.valid()) return Failed("write", path, errno);
    return std::make_unique<FileWriter>(path, std::move(fd), head_bytes);
  }

  absl::Status Claim(const std::string& name) override {
    const fs::path path = root_ / name;
    SYNCLINE_RETURN_IF_ERROR(MakeFolders(root_, path.parent_path()));
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd.valid() && errno == EEXIST) {
      return absl::AlreadyExistsError(absl::StrCat(path.string(), " exists already"));
    }
    if (!fd.valid()) return Failed("make", path, errno);
    return SyncFolder(path.parent_path());
  }

  // Also deletes folders that are now empty.
  absl::Status Delete(const std::string& name) override {
    fs::path path = root_ / name;
    if (unlink(path.c_str()) == 0) {
      // Otherwise a deleted manifest could come back after a power cut, and name parts
      // that are gone.
      SYNCLINE_RETURN_IF_ERROR(SyncFolder(path.parent_path()));
    } else if (errno != ENOENT) {
      return Failed("delete", path, errno);
    }
    for (path = path.parent_path(); path != root_; path = path.parent_path()) {
      if (rmdir(path.c_str()) != 0) break;
    }
    return absl::OkStatus();
  }

  std::string Describe() const override {
    return absl::StrCat("directory ", root_.string());
  }

 private:
  const fs::path root_;
};

absl::Status Unusable(const std::string& path, const std::string& why) {
  return WithFailure(
      absl::InvalidArgumentError(absl::StrCat("--checkpoint-dir ", path, ": ", why)),
      Failure::kUsage);
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlobStore>> OpenDirectoryStore(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return Unusable(path, error.message());
  if (access(path.c_str(), R_OK | W_OK | X_OK) != 0) {
    return Unusable(path, absl::StrCat(std::strerror(errno), "; check its permissions"));
  }
  return OpenExistingDirectoryStore(path);
}

absl::StatusOr<std::unique_ptr<BlobStore>> OpenExistingDirectoryStore(
    const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return Unusable(path, "there is no such directory; check the path");
  }
  // No '/' at the end: the loops over parent_path() compare with `root`.
  fs::path root = fs::absolute(path, error).lexically_normal();
  if (!root.has_filename()) root = root.parent_path();
  return std::make_unique<DirectoryStore>(std::move(root));
}

}  // namespace syncline
