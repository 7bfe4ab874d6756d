// SPDX-License-Identifier: Apache-2.0
#include "hardware/memory/history.h"

#include <algorithm>
#include <utility>

namespace drivetrain::hardware {
namespace {

// `into` becomes the point of both, `next` being the later one.
void merge(MemoryPoint& into, const MemoryPoint& next) {
  into.last_step = next.last_step;
  for (size_t i = 0; i < into.bytes.size(); ++i)
    into.bytes[i] = std::max(into.bytes[i], next.bytes[i]);
  into.allocated = std::max(into.allocated, next.allocated);
  into.peak = std::max(into.peak, next.peak);
  for (const auto& [label, bytes] : next.marks) {
    const auto [mine, is_new] = into.marks.emplace(label, bytes);
    if (!is_new) mine->second = std::max(mine->second, bytes);
  }
}

}  // namespace

void History::add(MemoryPoint point) {
  point.first_step = point.last_step = steps_++;
  for (size_t i = 0; i < largest_.size(); ++i) largest_[i].take(point.bytes[i], point.last_step);
  peak_.take(point.peak, point.last_step);
  for (const auto& [label, bytes] : point.marks) marks_[label].take(bytes, point.last_step);
  last_ = point;
  if (!points_.empty() && point.last_step - points_.back().first_step < stride_)
    return merge(points_.back(), point);
  if (points_.size() == max_points_) halve();
  // With an odd number of points the last one has room for more.
  if (!points_.empty() && point.last_step - points_.back().first_step < stride_)
    return merge(points_.back(), point);
  points_.push_back(std::move(point));
}

void History::halve() {
  size_t kept = 0;
  for (size_t i = 0; i < points_.size(); i += 2) {
    if (i + 1 < points_.size()) merge(points_[i], points_[i + 1]);
    if (kept != i) points_[kept] = std::move(points_[i]);
    ++kept;
  }
  points_.resize(kept);
  stride_ *= 2;
}

}  // namespace drivetrain::hardware
