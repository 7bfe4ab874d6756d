// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/progress.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "core/environment.h"

namespace drivetrain {
namespace {

constexpr int kDefaultColumns = 80;
constexpr int kBarWidth = 24;

// Columns of the terminal behind standard error, or 0 where there is none. A launcher that passes
// lines on says through DRIVETRAIN_TERMINAL_COLUMNS that a terminal is behind it.
int terminal_columns() {
  if (const auto columns = core::environment_int("DRIVETRAIN_TERMINAL_COLUMNS", 0, 10000))
    return static_cast<int>(*columns);
  if (::isatty(STDERR_FILENO) == 0) return 0;
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kDefaultColumns;
}

// "1:02:03" or "02:03".
std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(std::llround(std::max(0.0, seconds)));
  std::array<char, 48> out{};
  if (whole >= 3600)
    std::snprintf(out.data(), out.size(), "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60,
                  whole % 60);
  else
    std::snprintf(out.data(), out.size(), "%02lld:%02lld", whole / 60, whole % 60);
  return out.data();
}

std::string rate_text(double rate, const std::string& unit) {
  std::array<char, 48> out{};
  std::snprintf(out.data(), out.size(), rate >= 100 ? "%.0f " : "%.3g ", rate);
  return out.data() + unit + "/s";
}

std::string bar(double fraction) {
  const int filled = static_cast<int>(std::floor(fraction * kBarWidth));
  return "[" + std::string(filled, '#') + std::string(kBarWidth - filled, '.') + "]";
}

std::string percent(double fraction) {
  std::array<char, 16> out{};
  std::snprintf(out.data(), out.size(), "%3d%%", static_cast<int>(std::floor(fraction * 100)));
  return out.data();
}

}  // namespace

namespace detail {

std::string progress_line(const ProgressOptions& options, const std::string& status, int64_t count,
                          int64_t total, double seconds, int columns) {
  std::string line = options.description.empty() ? "" : options.description + " ";
  const double rate = seconds > 0 ? static_cast<double>(count) / seconds : 0;
  if (total > 0) {
    const double fraction = std::min(1.0, static_cast<double>(count) / static_cast<double>(total));
    line += percent(fraction) + " ";
    if (columns > 0) line += bar(fraction) + " ";
    line += std::to_string(count) + "/" + std::to_string(total);
  } else {
    line += std::to_string(count);
  }
  line += " " + rate_text(rate, options.unit) + ", " + clock_text(seconds);
  if (total > count && rate > 0)
    line += ", ETA " + clock_text(static_cast<double>(total - count) / rate);
  if (!status.empty()) line += ", " + status;
  if (columns > 0 && line.size() >= static_cast<size_t>(columns))
    line.resize(static_cast<size_t>(columns) - 1);
  return line;
}

}  // namespace detail

ProgressBar::ProgressBar(int64_t total, ProgressOptions options)
    : total_(total),
      options_(std::move(options)),
      is_terminal_(options_.stream == nullptr && terminal_columns() > 0) {
  if (options_.interval.count() <= 0)
    options_.interval = std::chrono::milliseconds(is_terminal_ ? 100 : 5000);
  next_update_ = start_ + options_.interval;
}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::advance(int64_t count) {
  count_ += count;
  const auto now = Clock::now();
  if (now >= next_update_) show(now);
}

void ProgressBar::show(Clock::time_point now) {
  next_update_ = now + options_.interval;
  if (!options_.enabled || is_finished_) return;
  std::ostream& out = options_.stream != nullptr ? *options_.stream : std::cerr;
  std::string line = figures(now);
  if (is_terminal_) {
    const size_t width = line.size();
    // Blanks hide what is left of a longer line before.
    line = "\r" + line + std::string(last_width_ > width ? last_width_ - width : 0, ' ');
    last_width_ = width;
  } else {
    line += '\n';
  }
  out << line << std::flush;
}

std::string ProgressBar::figures(Clock::time_point now) const {
  const double seconds = std::chrono::duration<double>(now - start_).count();
  return detail::progress_line(options_, status_, count_, total_, seconds,
                               is_terminal_ ? terminal_columns() : 0);
}

void ProgressBar::finish() {
  if (is_finished_) return;
  show(Clock::now());
  if (options_.enabled && is_terminal_) std::cerr << std::endl;
  is_finished_ = true;
}

}  // namespace drivetrain
