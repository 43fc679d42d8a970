#include "cli/orphans.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace syncline {
namespace {

// The children of a killed process come to this process in the next round. More rounds
// help only against a program that forks faster than it is killed.
constexpr int kRounds = 100;

// Returns the parent's pid; 0 if the process does not exist any more.
pid_t ParentOf(pid_t process) {
  std::ifstream file(absl::StrCat("/proc/", process, "/stat"));
  std::string stat;
  std::getline(file, stat);
  // In "17 (a name) S 1 ...", the name may contain any characters.
  const size_t after_name = stat.rfind(')');
  if (after_name == std::string::npos || after_name + 4 > stat.size()) return 0;
  return static_cast<pid_t>(std::strtol(stat.c_str() + after_name + 4, nullptr, 10));
}

std::set<pid_t> Children() {
  std::set<pid_t> children;
  DIR* processes = opendir("/proc");
  if (processes == nullptr) return children;
  const pid_t self = getpid();
  while (const dirent* entry = readdir(processes)) {
    int process = 0;
    if (absl::SimpleAtoi(entry->d_name, &process) && ParentOf(process) == self) {
      children.insert(process);
    }
  }
  closedir(processes);
  return children;
}

}  // namespace

Orphans::Orphans() : earlier_(Children()) { prctl(PR_SET_CHILD_SUBREAPER, 1); }

Orphans::~Orphans() { prctl(PR_SET_CHILD_SUBREAPER, 0); }

void Orphans::Reap(const IsKnown& is_known) const {
  siginfo_t info = {};
  // WNOWAIT only looks. The exit status of a known child is for its owner.
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    if (!IsOrphan(info.si_pid, is_known)) return;
    waitpid(info.si_pid, nullptr, WNOHANG);
    info = {};
  }
}

void Orphans::Kill(const IsKnown& is_known) const {
  for (int round = 0; round < kRounds; ++round) {
    bool any = false;
    for (const pid_t child : Children()) {
      if (!IsOrphan(child, is_known)) continue;
      any = true;
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    if (!any) return;
  }
}

}  // namespace syncline
