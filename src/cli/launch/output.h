// SPDX-License-Identifier: Apache-2.0
// A rank's output on its way: split into whole lines, marked, kept and logged.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/launch/console.h"
#include "cli/launch/fd.h"

namespace drivetrain::cli {

// Cuts a stream into lines. A line of more than 16 MiB is cut there.
class LineSplitter {
 public:
  static constexpr size_t kLongest = 16 << 20;

  // Calls `line` with each line that `chunk` completes, newline included.
  void feed(std::string_view chunk, const std::function<void(std::string_view)>& line);

  // The line that has begun and not ended.
  const std::string& partial() const { return partial_; }
  std::string take_partial() { return std::exchange(partial_, ""); }

 private:
  std::string partial_;
};

// What a terminal shows of a line in which carriage returns went back to its start.
std::string_view visible_part(std::string_view line);

// The last lines of a stream, each cut at 2,000 bytes.
class LastLines {
 public:
  static constexpr size_t kCount = 20;
  void add(std::string_view line);
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::deque<std::string> lines_;
};

// A file that keeps a stream byte for byte. If it fails (disk full), the run goes on without it.
class LogFile {
 public:
  LogFile() = default;
  // Throws ConfigError if it cannot be created.
  explicit LogFile(const std::string& path);

  // A message if writing failed, once; "" otherwise.
  std::string write(std::string_view chunk);

 private:
  std::string path_;
  Fd file_;
};

// The two ends of a rank's stream: a pipe, or a pseudo-terminal where the launcher's own stream
// (`like`) is a terminal, so that the program buffers and draws as it would without a launcher.
struct Channel {
  Fd read;   // non-blocking
  Fd write;  // for the rank
};
Channel open_channel(int like, size_t prefix_width);

// Gives a pseudo-terminal the size of the terminal `like`, less the prefix.
void copy_window_size(int like, const Fd& terminal, size_t prefix_width);

struct StreamTarget {
  Console* console = nullptr;
  Sink* sink = nullptr;          // null: not shown
  std::string prefix;            // "[0] "
  bool may_hold_status = false;  // its unfinished line is shown below all others (rank 0)
  bool keeps_raw_end = false;    // the only rank: an unfinished last line stays as it is
};

class RankStream {
 public:
  RankStream(Fd source, StreamTarget target, LogFile log)
      : source_(std::move(source)), target_(std::move(target)), log_(std::move(log)) {}

  enum class Read { more, nothing_yet, ended };

  // Reads one chunk and passes its lines on. At the end, what is left of a line as well.
  Read read_chunk();
  void finish();

  bool is_open() const { return static_cast<bool>(source_); }
  const Fd& source() const { return source_; }
  std::vector<std::string> last_lines() const { return last_.lines(); }

 private:
  void pass_on(std::string_view chunk);
  void emit(std::string_view line);
  void show_status();

  Fd source_;
  StreamTarget target_;
  LogFile log_;
  LineSplitter splitter_;
  LastLines last_;
};

}  // namespace drivetrain::cli
