// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace drivetrain {

// Milliseconds that fn() takes.
template <class Fn>
double milliseconds(Fn&& fn) {
  const auto begin = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace drivetrain
