#include "cli/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/base/failure.h"

namespace syncline {
namespace {

absl::Status CannotWrite(const std::string& path, const std::string& why) {
  return WithFailure(absl::InvalidArgumentError(
                         absl::StrCat("cannot write --audit-log '", path, "': ", why,
                                      "; check path and permissions")),
                     Failure::kUsage);
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const std::string& path,
                                                         AuditLogEvents events) {
  // O_NONBLOCK: otherwise opening a pipe waits for its reader.
  UniqueFd file(open(path.c_str(),
                     O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                     0600));
  if (!file.valid()) return CannotWrite(path, std::strerror(errno));
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) return CannotWrite(path, std::strerror(errno));
  // A file names members and their addresses, so it becomes private. A device or a pipe
  // keeps its mode, since others use it too.
  if (S_ISREG(info.st_mode) && fchmod(file.get(), 0600) != 0) {
    return CannotWrite(path, std::strerror(errno));
  }
  return std::unique_ptr<AuditLog>(new AuditLog(std::move(file), std::move(events)));
}

AuditLog::AuditLog(UniqueFd file, AuditLogEvents events)
    : file_(std::move(file)),
      events_(std::move(events)),
      logger_(Logger::Create(
          {.format = LogFormat::kJson,
           .function = [this](LogLevel, const std::string& line) { Write(line); }})) {}

void AuditLog::Write(const std::string& line) {
  const std::string bytes = absl::StrCat(is_cut_off_ ? "\n" : "", line, "\n");
  ssize_t written = 0;
  do {
    written = write(file_.get(), bytes.data(), bytes.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(bytes.size())) {
    is_cut_off_ = false;
    if (lost_ > 0) events_.on_change("", std::exchange(lost_, 0));
    return;
  }
  // A short write means that the disk is full.
  const std::string reason = std::strerror(written < 0 ? errno : ENOSPC);
  if (written > 0) is_cut_off_ = true;
  events_.on_lost();
  if (++lost_ == 1) events_.on_change(reason, lost_);
}

void AddAuditLine(const std::string& directory, const std::string& message,
                  std::initializer_list<LogField> fields) {
  const std::string path = directory + "/audit.log";
  const auto warn = [&path](const std::string& reason) {
    std::cerr << "syncline: warning: cannot write a line to " << path << ": " << reason
              << "\n";
  };
  AuditLogEvents events;
  events.on_change = [&](const std::string& reason, uint64_t) { warn(reason); };
  const auto audit = AuditLog::Open(path, std::move(events));
  if (!audit.ok()) return warn(std::string(audit.status().message()));
  (*audit)->logger().Info(message, fields);
}

}  // namespace syncline
