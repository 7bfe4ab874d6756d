// SPDX-License-Identifier: Apache-2.0
// The launcher's own standard output and error. Lines are written whole and by one process, so
// they never mix; and never with a call that blocks, so a reader that stands still (a full pipe,
// Ctrl-S) stops the output but not the launcher.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cli/launch/fd.h"

namespace drivetrain::cli {

class Sink {
 public:
  explicit Sink(int fd);

  // Queues text that ends with a newline (or is the last of a stream). flush() writes it.
  void put(std::string_view text);

  // The unfinished line that stays below all others, as a progress bar does; "" for none. Shown on
  // a terminal only.
  void set_status(std::string status);

  // Writes what can be written now. What is left needs poll_fd() to become writable.
  void flush();

  bool is_terminal() const { return terminal_; }
  bool empty() const { return queue_.empty(); }
  bool full() const { return queue_.size() > kHighWater; }
  int poll_fd() const { return reopened_ ? reopened_.get() : fd_; }
  void drop_queue() { queue_.clear(); }

  // Why writing failed (a closed pipe, a full disk), told once; "" otherwise. All that is put
  // afterwards is dropped.
  std::string take_problem() { return std::exchange(problem_, ""); }

 private:
  static constexpr size_t kHighWater = 1 << 20;
  enum class Kind { file, stream, socket };

  ssize_t write_some();

  int fd_;
  Fd reopened_;  // the same pipe or terminal, but with its own O_NONBLOCK
  Kind kind_ = Kind::file;
  bool terminal_ = false;
  bool broken_ = false;
  std::string queue_;
  std::string status_;
  bool status_drawn_ = false;
  std::string problem_;
};

// Both streams; one sink where they are the same terminal, so that the status line stays below.
class Console {
 public:
  Console();
  Sink& out() { return *out_; }
  Sink& error() { return *error_; }

  // A line of the launcher itself, on standard error.
  void say(std::string_view text);
  void flush();
  bool empty() const { return out_->empty() && error_->empty(); }
  bool full() const { return out_->full() || error_->full(); }

 private:
  void report_problem(Sink& sink, std::string_view name);

  std::shared_ptr<Sink> out_;
  std::shared_ptr<Sink> error_;
};

}  // namespace drivetrain::cli
