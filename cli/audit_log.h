// The coordinator's audit log: a file of JSON lines that only its user can read.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const auto audit, AuditLog::Open("audit.json", events));
//   audit->logger().Info("admitted", {{"as", "worker"}});
//
// Lines are added with one write each, so that a log that was rotated by copy and truncate
// goes on. A line that cannot be written is counted, and said once until lines are written
// again; one that was cut off ends before the next begins.
//
// Thread safety: the logger is for any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/base/log.h"
#include "comm/base/unique_fd.h"

namespace syncline {

// Neither may use the audit log. Called by whoever logs.
struct AuditLogEvents {
  std::function<void()> on_lost = [] {};  // a line
  // Once for each time: why lines are lost now; empty: they are written again.
  std::function<void(const std::string& reason, uint64_t lost)> on_change =
      [](const std::string&, uint64_t) {};
};

class AuditLog {
 public:
  // Failure::kUsage for what cannot be written. A file is private afterwards; a device or a
  // pipe keeps its mode.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path,
                                                        AuditLogEvents events);
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  const Logger& logger() const { return logger_; }

 private:
  AuditLog(UniqueFd file, AuditLogEvents events);

  // One at a time, by the logger.
  void Write(const std::string& line);

  const UniqueFd file_;
  const AuditLogEvents events_;
  bool is_cut_off_ = false;  // the last line
  uint64_t lost_ = 0;        // since lines were written
  Logger logger_;
};

// Adds a line to the audit log of an authority's directory: who was given a certificate or a
// token there, and what was taken back. The error output says when it cannot.
void AddAuditLine(const std::string& directory, const std::string& message,
                  std::initializer_list<LogField> fields);

}  // namespace syncline
