#include "server/store/sqlite_store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "comm/base/failure.h"
#include "comm/base/status.h"
#include "comm/base/unique_fd.h"

namespace syncline {
namespace {

// Stored in the file's header: kApplicationId ("SYNC") marks the file as ours.
constexpr int kApplicationId = 0x53594e43;
constexpr int kLayoutVersion = 1;
// The table's columns: name, type, position in the primary key.
constexpr char kColumns[] = "key TEXT 1,version INTEGER 0,value BLOB 0";

absl::Status Unusable(absl::StatusCode code, const std::string& message) {
  return WithFailure(absl::Status(code, message), Failure::kStateUnusable);
}

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
};
struct FinalizeStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;
using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

absl::Status Damaged(const std::string& path, const std::string& reason) {
  return Unusable(absl::StatusCode::kDataLoss,
                  absl::StrCat("state file ", path, " is damaged (",
                               absl::StrReplaceAll(reason, {{"\n", " "}}),
                               "); restore it from a backup, or move it and what lies "
                               "beside it (",
                               path, "-*) away to start without the jobs it knew"));
}

// Returns an error that says what SQLite's result code means and what to do about it.
absl::Status ToStatus(int code, sqlite3* database, const std::string& path) {
  const std::string reason =
      database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(code);
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Unusable(
          absl::StatusCode::kFailedPrecondition,
          absl::StrCat("state file ", path,
                       " is in use by another coordinator; stop that one, or give "
                       "this one its own --state-dir"));
    case SQLITE_FULL:
      return Unusable(absl::StatusCode::kResourceExhausted,
                      absl::StrCat("no space left to write state file ", path,
                                   "; free space on its disk"));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return Damaged(path, reason);
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return Unusable(
          absl::StatusCode::kPermissionDenied,
          absl::StrCat("cannot write state file ", path, " (", reason,
                       "); check its owner and permissions, or choose another "
                       "--state-dir"));
    default:
      return Unusable(absl::StatusCode::kUnavailable,
                      absl::StrCat("state file ", path, " failed: ", reason,
                                   "; check its disk (dmesg)"));
  }
}

absl::Status MakeDirectory(const std::string& directory) {
  std::error_code error;
  const bool made = std::filesystem::create_directories(directory, error);
  if (made) chmod(directory.c_str(), 0700);
  if (!error && access(directory.c_str(), R_OK | W_OK | X_OK) == 0)
    return absl::OkStatus();
  const std::string reason = error ? error.message() : std::strerror(errno);
  return Unusable(
      absl::StatusCode::kPermissionDenied,
      absl::StrCat("cannot write to state directory '", directory, "': ", reason,
                   "; make it writable for this user, or choose another --state-dir"));
}

// Fails if the file is empty. SQLite would take it for a new database, and counters that
// must only grow would start again.
absl::Status CheckNotEmptied(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0 || info.st_size > 0) return absl::OkStatus();
  return Unusable(absl::StatusCode::kDataLoss,
                  absl::StrCat("state file ", path,
                               " is empty; restore it from a backup, or remove it if no "
                               "job ever ran with it"));
}

absl::Status CannotWrite(const std::string& path) {
  return Unusable(
      errno == ENOSPC ? absl::StatusCode::kResourceExhausted
                      : absl::StatusCode::kPermissionDenied,
      absl::StrCat("cannot write state file ", path, " (", std::strerror(errno),
                   "); check its owner, permissions and disk, or choose another "
                   "--state-dir"));
}

// Makes a file private that was written by an older version, or copied.
void MakePrivate(const std::string& directory, const std::string& path,
                 const Logger& log) {
  constexpr mode_t kOthersRead = S_IRGRP | S_IROTH;
  struct stat outside = {};
  const bool is_open =
      stat(directory.c_str(), &outside) == 0 && (outside.st_mode & kOthersRead) != 0;
  for (const std::string& file : {path, path + "-wal"}) {
    struct stat info = {};
    if (stat(file.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0) continue;
    const bool is_private = chmod(file.c_str(), 0600) == 0;
    if (is_private && !(is_open && (info.st_mode & kOthersRead) != 0)) continue;
    log.Warning(is_private
                    ? "other users could read a state file; it is private now, but they "
                      "may have the session keys of its jobs: chmod 700 the directory, "
                      "and start those jobs again if you do not trust these users"
                    : "other users can read a state file, which holds session keys: "
                      "chmod 600 the file and chmod 700 the directory",
                {{"file", file}});
  }
}

class SqliteStore final : public StateStore {
 public:
  SqliteStore(Database database, std::string path)
      : path_(std::move(path)), database_(std::move(database)) {}

  // Creates the table in a new file. The caller then closes the store.
  absl::Status Make() {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
    SYNCLINE_RETURN_IF_ERROR(Execute("BEGIN EXCLUSIVE"));
    SYNCLINE_RETURN_IF_ERROR(MakeTable());
    return Execute("COMMIT");
  }

  // Locks the file and changes nothing in it: it may belong to another program.
  absl::Status Check() {
    absl::MutexLock lock(&mutex_);
    sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    // Exclusive locking needs no shared-memory file and keeps a second coordinator out.
    SYNCLINE_RETURN_IF_ERROR(Execute("PRAGMA locking_mode=EXCLUSIVE"));
    SYNCLINE_RETURN_IF_ERROR(Execute("BEGIN EXCLUSIVE"));
    const absl::Status fits = CheckFile();
    SYNCLINE_RETURN_IF_ERROR(Execute("ROLLBACK"));
    return fits;
  }

  // REQUIRES: Check().ok()
  absl::Status Begin() {
    absl::MutexLock lock(&mutex_);
    sqlite3_db_config(database_.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, nullptr);
    // Each commit is on the disk before it is answered (FULL), as one append (WAL).
    SYNCLINE_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL"));
    SYNCLINE_RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
    if (!is_unused_) return absl::OkStatus();
    SYNCLINE_RETURN_IF_ERROR(Execute("BEGIN EXCLUSIVE"));
    SYNCLINE_RETURN_IF_ERROR(MakeTable());
    return Execute("COMMIT");
  }

  absl::StatusOr<std::optional<Versioned>> Load(std::string_view key) override {
    absl::MutexLock lock(&mutex_);
    return LoadLocked(key);
  }

  absl::StatusOr<int64_t> CompareAndSet(std::string_view key, int64_t expected_version,
                                        std::string_view value) override {
    SYNCLINE_RETURN_IF_ERROR(CheckValueSize(key, value));
    absl::MutexLock lock(&mutex_);
    SYNCLINE_ASSIGN_OR_RETURN(const auto current, LoadLocked(key));
    const int64_t version = current.has_value() ? current->version : kAbsent;
    if (version != expected_version)
      return VersionConflict(key, expected_version, version);
    // This process alone holds the lock, so nothing changes between the two statements. A
    // statement outside of BEGIN is its own transaction.
    SYNCLINE_ASSIGN_OR_RETURN(
        const Statement set,
        Compile(
            "INSERT INTO state(key, version, value) VALUES(?1, ?2, ?3) ON CONFLICT(key) "
            "DO UPDATE SET version = excluded.version, value = excluded.value"));
    BindText(set.get(), 1, key);
    sqlite3_bind_int64(set.get(), 2, version + 1);
    sqlite3_bind_blob64(set.get(), 3, value.data(), value.size(), SQLITE_STATIC);
    if (const int code = sqlite3_step(set.get()); code != SQLITE_DONE) return Error(code);
    return version + 1;
  }

  absl::Status Erase(std::string_view key, int64_t expected_version) override {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_ASSIGN_OR_RETURN(const auto current, LoadLocked(key));
    const int64_t version = current.has_value() ? current->version : kAbsent;
    if (version != expected_version)
      return VersionConflict(key, expected_version, version);
    SYNCLINE_ASSIGN_OR_RETURN(const Statement erase,
                              Compile("DELETE FROM state WHERE key = ?1"));
    BindText(erase.get(), 1, key);
    const int code = sqlite3_step(erase.get());
    return code == SQLITE_DONE ? absl::OkStatus() : Error(code);
  }

  absl::StatusOr<std::map<std::string, Versioned>> List(
      std::string_view prefix) override {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_ASSIGN_OR_RETURN(
        const Statement list,
        Compile("SELECT key, version, value FROM state WHERE substr(key, 1, ?1) = ?2"));
    sqlite3_bind_int64(list.get(), 1, static_cast<int64_t>(prefix.size()));
    BindText(list.get(), 2, prefix);
    std::map<std::string, Versioned> found;
    int code = sqlite3_step(list.get());
    for (; code == SQLITE_ROW; code = sqlite3_step(list.get())) {
      found[BytesAt(list.get(), 0)] = {sqlite3_column_int64(list.get(), 1),
                                       BytesAt(list.get(), 2)};
    }
    if (code != SQLITE_DONE) return Error(code);
    return found;
  }

 private:
  absl::Status CheckFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SYNCLINE_ASSIGN_OR_RETURN(const std::string check, Ask("PRAGMA quick_check(1)"));
    if (check != "ok") return Damaged(path_, check);
    SYNCLINE_ASSIGN_OR_RETURN(const std::string owner, Ask("PRAGMA application_id"));
    SYNCLINE_ASSIGN_OR_RETURN(const std::string layout, Ask("PRAGMA user_version"));
    SYNCLINE_ASSIGN_OR_RETURN(const std::string things,
                              Ask("SELECT count(*) FROM sqlite_master"));
    // An older version left such a file if its first start was cut short.
    is_unused_ = owner == "0" && layout == "0" && things == "0";
    if (is_unused_) return absl::OkStatus();
    if (owner != absl::StrCat(kApplicationId)) {
      return Unusable(absl::StatusCode::kFailedPrecondition,
                      absl::StrCat("state file ", path_,
                                   " is a database of another program; move it away, or "
                                   "choose another --state-dir"));
    }
    if (layout != absl::StrCat(kLayoutVersion)) {
      return Unusable(absl::StatusCode::kFailedPrecondition,
                      absl::StrCat("state file ", path_, " has layout ", layout,
                                   ", this syncline reads ", kLayoutVersion,
                                   "; run the version that wrote it, or choose another "
                                   "--state-dir"));
    }
    SYNCLINE_ASSIGN_OR_RETURN(const std::string columns,
                              Ask("SELECT group_concat(name || ' ' || type || ' ' || pk) "
                                  "FROM pragma_table_info('state')"));
    if (columns == kColumns) return absl::OkStatus();
    return Damaged(path_, columns.empty()
                              ? "its table is gone"
                              : absl::StrCat("its table has the columns ", columns));
  }

  absl::Status MakeTable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SYNCLINE_RETURN_IF_ERROR(
        Execute(absl::StrCat("PRAGMA application_id=", kApplicationId).c_str()));
    SYNCLINE_RETURN_IF_ERROR(
        Execute(absl::StrCat("PRAGMA user_version=", kLayoutVersion).c_str()));
    return Execute(
        "CREATE TABLE state(key TEXT PRIMARY KEY, version INTEGER NOT NULL, "
        "value BLOB NOT NULL) STRICT");
  }

  absl::StatusOr<std::optional<Versioned>> LoadLocked(std::string_view key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SYNCLINE_ASSIGN_OR_RETURN(const Statement get,
                              Compile("SELECT version, value FROM state WHERE key = ?1"));
    BindText(get.get(), 1, key);
    const int code = sqlite3_step(get.get());
    if (code == SQLITE_DONE) return std::optional<Versioned>();
    if (code != SQLITE_ROW) return Error(code);
    return std::optional<Versioned>(
        Versioned{sqlite3_column_int64(get.get(), 0), BytesAt(get.get(), 1)});
  }

  // Returns the first column of the first row.
  absl::StatusOr<std::string> Ask(const char* question)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SYNCLINE_ASSIGN_OR_RETURN(const Statement get, Compile(question));
    if (const int code = sqlite3_step(get.get()); code != SQLITE_ROW) return Error(code);
    return BytesAt(get.get(), 0);
  }

  absl::Status Execute(const char* sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int code = sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr);
    return code == SQLITE_OK ? absl::OkStatus() : Error(code);
  }

  absl::StatusOr<Statement> Compile(const std::string& sql)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    sqlite3_stmt* statement = nullptr;
    const int code = sqlite3_prepare_v2(
        database_.get(), sql.data(), static_cast<int>(sql.size()), &statement, nullptr);
    if (code != SQLITE_OK) return Error(code);
    return Statement(statement);
  }

  static std::string BytesAt(sqlite3_stmt* row, int column) {
    const void* bytes = sqlite3_column_blob(row, column);
    const int size = sqlite3_column_bytes(row, column);
    return {static_cast<const char*>(bytes), static_cast<size_t>(size)};
  }

  static void BindText(sqlite3_stmt* statement, int index, std::string_view text) {
    sqlite3_bind_text(statement, index, text.data(), static_cast<int>(text.size()),
                      SQLITE_STATIC);
  }

  absl::Status Error(int code) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ToStatus(code, database_.get(), path_);
  }

  const std::string path_;
  absl::Mutex mutex_;
  Database database_ ABSL_GUARDED_BY(mutex_);
  bool is_unused_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::unique_ptr<SqliteStore>> OpenFile(const std::string& path) {
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READWRITE, nullptr);
  Database database(opened);
  if (code != SQLITE_OK) return ToStatus(code, database.get(), path);
  return std::make_unique<SqliteStore>(std::move(database), path);
}

void RemoveUnfinished(const std::string& path) {
  for (const char* suffix : {"", "-journal", "-wal"}) unlink((path + suffix).c_str());
}

// Creates the file, because SQLite would use the umask's mode. Its log gets the file's
// mode.
absl::Status MakeUnfinished(const std::string& path) {
  RemoveUnfinished(path);
  const UniqueFd made(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!made.valid()) return CannotWrite(path);
  SYNCLINE_ASSIGN_OR_RETURN(const auto store, OpenFile(path));
  return store->Make();
}

// Fails if a log is left: SQLite would apply the log of a deleted file to the next one.
absl::Status CheckNothingIsLeft(const std::string& path) {
  for (const char* suffix : {"-wal", "-journal"}) {
    struct stat info = {};
    if (lstat((path + suffix).c_str(), &info) != 0 || info.st_size == 0) continue;
    return Unusable(absl::StatusCode::kDataLoss,
                    absl::StrCat("state file ", path, " is gone, and ", path, suffix,
                                 ", a part of it, is not; bring both back, or move the "
                                 "rest away to start without the jobs that it knew"));
  }
  return absl::OkStatus();
}

// Creates the file under another name, and renames it once it is whole. A first start
// that was cut short therefore leaves no state file, and an empty state file was emptied
// later.
absl::Status MakeIfMissing(const std::string& directory, const std::string& path) {
  const UniqueFd folder(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return CannotWrite(path);
  if (flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return CannotWrite(path);
    return ToStatus(SQLITE_BUSY, nullptr, path);  // another process is creating it now
  }
  struct stat info = {};
  if (lstat(path.c_str(), &info) == 0) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(CheckNothingIsLeft(path));
  const std::string unfinished = path + ".new";
  absl::Status made = MakeUnfinished(unfinished);
  if (made.ok() &&
      (rename(unfinished.c_str(), path.c_str()) != 0 || fsync(folder.get()) != 0)) {
    made = CannotWrite(path);
  }
  if (!made.ok()) RemoveUnfinished(unfinished);
  return made;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateStore>> OpenSqliteStore(const std::string& directory,
                                                            const Logger& log) {
  SYNCLINE_RETURN_IF_ERROR(MakeDirectory(directory));
  const std::string path = absl::StrCat(directory, "/state.db");
  SYNCLINE_RETURN_IF_ERROR(MakeIfMissing(directory, path));
  SYNCLINE_RETURN_IF_ERROR(CheckNotEmptied(path));
  SYNCLINE_ASSIGN_OR_RETURN(auto store, OpenFile(path));
  SYNCLINE_RETURN_IF_ERROR(store->Check());
  MakePrivate(directory, path, log);
  SYNCLINE_RETURN_IF_ERROR(store->Begin());
  return std::unique_ptr<StateStore>(std::move(store));
}

}  // namespace syncline
