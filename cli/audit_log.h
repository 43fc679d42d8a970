// The coordinator's audit log: a file of JSON lines that only its user can read.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const auto audit, AuditLog::Open("audit.json", events));
//   audit->logger().Info("admitted", {{"as", "worker"}});
//
// Each line is appended with one write, so that the log survives rotation by copy and
// truncate. A line that cannot be written is counted. The first loss is reported, and
// then again only after writing has worked. After a truncated line the next one starts on
// a new line.
//
// Thread safety: the logger may be used by any thread.
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

// Called by the thread that logs. The callbacks must not use the audit log.
struct AuditLogEvents {
  std::function<void()> on_lost = [] {};  // a line was lost
  // Called when losses begin, with the reason, and with an empty reason when lines are
  // written again. `lost`: number of lines lost.
  std::function<void(const std::string& reason, uint64_t lost)> on_change =
      [](const std::string&, uint64_t) {};
};

class AuditLog {
 public:
  // Fails with Failure::kUsage when the path cannot be written. Makes a file private; a
  // device or a pipe keeps its mode.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path,
                                                        AuditLogEvents events);
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  const Logger& logger() const { return logger_; }

 private:
  AuditLog(UniqueFd file, AuditLogEvents events);

  // Called by the logger, by one thread at a time.
  void Write(const std::string& line);

  const UniqueFd file_;
  const AuditLogEvents events_;
  bool is_cut_off_ = false;  // the last line was cut off
  uint64_t lost_ = 0;        // since lines were last written
  Logger logger_;
};

// Adds a line to the audit log of an authority's directory: which certificate or token
// was given to which peer, and what was revoked. Prints to standard error if it cannot.
void AddAuditLine(const std::string& directory, const std::string& message,
                  std::initializer_list<LogField> fields);

}  // namespace syncline
