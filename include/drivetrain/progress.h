// SPDX-License-Identifier: Apache-2.0
// A progress bar: bar, rate and time left on a terminal, plain lines anywhere else.
#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

namespace drivetrain {

struct ProgressOptions {
  std::string description = "";
  std::string unit = "it";
  bool enabled = true;  // false on the ranks that should be silent
  // The least time between two updates; zero means 100 ms on a terminal and 5 s elsewhere.
  std::chrono::milliseconds interval{0};
  std::ostream* stream = nullptr;  // null means standard error
};

// Counts towards `total` (0 where unknown) and shows how far it is.
class ProgressBar {
 public:
  explicit ProgressBar(int64_t total, ProgressOptions options = {});
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();  // finishes

  void advance(int64_t count = 1);
  // Text shown behind the figures, "loss 0.31".
  void set_status(std::string status) { status_ = std::move(status); }
  // Shows the last state and ends the line. Later calls do nothing.
  void finish();

  int64_t count() const noexcept { return count_; }

 private:
  using Clock = std::chrono::steady_clock;

  void show(Clock::time_point now);
  std::string figures(Clock::time_point now) const;

  int64_t total_;
  ProgressOptions options_;
  bool is_terminal_;
  int64_t count_ = 0;
  std::string status_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_update_ = start_;
  size_t last_width_ = 0;
  bool is_finished_ = false;
};

namespace detail {
// What the bar shows; a function of its arguments alone. `columns` 0 means plain lines.
std::string progress_line(const ProgressOptions& options, const std::string& status, int64_t count,
                          int64_t total, double seconds, int columns);
}  // namespace detail

}  // namespace drivetrain
