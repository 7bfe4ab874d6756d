// SPDX-License-Identifier: Apache-2.0
// How a launch failed: which rank was first, and what is told about it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace drivetrain::cli {

// What the library of a failing rank left in its DRIVETRAIN_ERROR_FILE.
struct ErrorRecord {
  std::string message;
  std::string collective;    // the one it was in, or ""
  double time = 0;           // seconds since 1970
  bool blames_peer = false;  // it failed because another rank had
};

// Nothing if the file is absent or is no JSON object. The fields: "message", "collective", "time",
// and either "peer" (the rank that it blames) or a message that says "peer failed".
std::optional<ErrorRecord> read_error_record(const std::string& path);

struct RankOutcome {
  int rank = 0;
  pid_t pid = 0;
  int status = 0;            // as waitpid gives it
  int order = 0;             // of the exits on this machine, from 0
  bool was_ended = false;    // it still ran when the launcher began to end all ranks
  bool was_killed = false;   // and needed SIGKILL
  std::string exec_problem;  // why the program could not be run, or ""
  std::optional<ErrorRecord> error;
  std::vector<std::string> last_lines;  // of its standard error
};

// Exit code as a shell reports it: the code, or 128 + signal.
int exit_code(int status);
// "exit code 3", "signal 11 (SIGSEGV: Segmentation fault)".
std::string describe(int status);

// The rank to blame, as an index; nothing if all returned 0. A rank that failed by itself comes
// before one that blames a peer, and that before one which the launcher ended; of several, the one
// that ended first.
std::optional<size_t> first_failure(const std::vector<RankOutcome>& outcomes);

// Several lines, without the final newline.
std::string failure_text(const std::vector<RankOutcome>& outcomes, size_t first);

struct LaunchFacts {
  std::string run_id;
  std::vector<std::string> command;
  int restarts = 0;
  int exit_code = 0;
};

// Writes the error file: appears whole or not at all. A message if that failed, else "".
std::string write_error_file(const std::string& path, const std::vector<RankOutcome>& outcomes,
                             size_t first, const LaunchFacts& facts);

}  // namespace drivetrain::cli
