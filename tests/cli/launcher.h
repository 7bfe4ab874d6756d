// SPDX-License-Identifier: Apache-2.0
// Runs the real `drivetrain launch` and sees what a user sees.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "cli/launch/fd.h"

namespace drivetrain::cli {

using Words = std::vector<std::string>;

struct LaunchSetting {
  Words environment;           // NAME=value, over this process's own
  std::vector<int> cpus;       // affinity mask to start with; empty: as this process
  std::string input;           // what its standard input holds
  bool on_terminal = false;    // all three streams are one pseudo-terminal, `out` is what it shows
  bool closed_output = false;  // nobody reads its standard output
};

struct LaunchResult {
  int code = 0;  // exit code, or -signal
  std::string out;
  std::string err;
  double seconds = 0;
};

class Launcher {
 public:
  // Starts `drivetrain launch ARGUMENTS`.
  explicit Launcher(const Words& arguments, const LaunchSetting& setting = {});
  // Kills it where a test gave up.
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int signal) const;
  // What a user types at the terminal.
  void type(const std::string& keys) const;

  // Reads until standard output holds `text` at least `times`. A failure of the test after 10 s.
  std::string wait_for(const std::string& text, size_t times = 1);

  // Reads to the end. A failure of the test, and SIGKILL, after 20 s.
  LaunchResult wait();

 private:
  bool read_some(int milliseconds);
  void reap(bool kill_it);

  pid_t pid_ = 0;
  Fd out_, err_, terminal_;
  std::chrono::steady_clock::time_point start_;
  LaunchResult result_;
};

LaunchResult launch_and_wait(const Words& arguments, const LaunchSetting& setting = {});

// Arguments that run a shell script on `ranks` ranks.
Words script(int ranks, const std::string& text, Words options = {});
// ... that run the test program.
Words program(int ranks, const Words& arguments, Words options = {});

// Neither running nor stopped (zombies count as gone), within `seconds`.
bool is_gone(pid_t pid, double seconds);

// Numbers that follow `label` in `text`, as in "label 12\n".
std::vector<int> numbers_after(const std::string& text, const std::string& label);

// A folder that is removed with the object.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string contents(const std::string& path);

}  // namespace drivetrain::cli
