// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/process_tree.h"

#include <drivetrain/error.h>

#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/text.h"

namespace drivetrain::cli {
namespace {

// The field after the command's name, which may hold spaces and brackets.
pid_t parent_of(const std::filesystem::path& process) {
  std::ifstream file(process / "stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos || name_end + 4 >= line.size()) return 0;
  return static_cast<pid_t>(std::atoi(line.c_str() + name_end + 4));
}

// For kernels without CONFIG_PROC_CHILDREN.
std::vector<pid_t> children_by_scan() {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (std::isdigit(static_cast<unsigned char>(name[0])) == 0) continue;
    if (parent_of(entry.path()) == ::getpid()) found.push_back(std::atoi(name.c_str()));
  }
  return found;
}

}  // namespace

void become_subreaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
    throw Error("launch", core::str("cannot become a subreaper: ", std::strerror(errno),
                                    "; allowed: Linux 5.3 or newer; run the ranks without it"));
}

std::vector<pid_t> children() {
  std::ifstream file("/proc/thread-self/children");
  if (!file) return children_by_scan();
  std::vector<pid_t> found;
  for (pid_t pid = 0; file >> pid;) found.push_back(pid);
  return found;
}

void kill_all_children() {
  while (true) {
    for (const pid_t pid : children()) ::kill(pid, SIGKILL);
    // A death may hand us further children: look again after each.
    if (::waitpid(-1, nullptr, 0) < 0 && errno == ECHILD) return;
  }
}

}  // namespace drivetrain::cli
