// SPDX-License-Identifier: Apache-2.0
// The points of a timeline: bounded in number, however many steps there are.
#pragma once

#include <drivetrain/memory.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace drivetrain::hardware {

// The largest value of a figure, and the first step that had it.
struct Largest {
  int64_t bytes = 0, step = 0;

  void take(int64_t value, int64_t at) {
    if (value > bytes) *this = {value, at};
  }
};

class History {
 public:
  explicit History(int max_points) : max_points_(static_cast<size_t>(max_points)) {}

  // A point of one step, the one after the last.
  void add(MemoryPoint point);

  const std::vector<MemoryPoint>& points() const { return points_; }
  int64_t steps() const { return steps_; }
  int64_t steps_per_point() const { return stride_; }

  const MemoryPoint& last() const { return last_; }  // the last step's, not merged
  const std::array<Largest, kNumMemoryCategories>& largest() const { return largest_; }
  const Largest& peak() const { return peak_; }
  const std::map<std::string, Largest>& marks() const { return marks_; }

 private:
  void halve();

  size_t max_points_;
  int64_t stride_ = 1;  // each point but the last is of so many steps
  int64_t steps_ = 0;
  std::vector<MemoryPoint> points_;
  MemoryPoint last_;
  std::array<Largest, kNumMemoryCategories> largest_{};
  Largest peak_;
  std::map<std::string, Largest> marks_;
};

}  // namespace drivetrain::hardware
