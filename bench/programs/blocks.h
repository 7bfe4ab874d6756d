// SPDX-License-Identifier: Apache-2.0
// Timing in blocks of steps, two or more sides by turns.
#pragma once

#include <chrono>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace bench {

// One way to do the work, and what a block of it costs: microseconds a step, once a block.
struct Side {
  std::string name;
  std::function<void()> step;
  std::vector<double> samples = {};
};

struct Plan {
  int warmups;  // steps of each side before timing
  int blocks;   // of each side
  int steps;    // a block
};

inline double seconds_now() {
  using std::chrono::steady_clock;  // CLOCK_MONOTONIC
  return std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count();
}

inline double microseconds_a_step(const std::function<void()>& step, int steps) {
  const double started = seconds_now();
  for (int i = 0; i < steps; ++i) step();
  return (seconds_now() - started) / steps * 1e6;
}

// Blocks of the sides by turns: A B A B. `between` runs before each block, outside its time.
inline void time_by_turns(
    std::vector<Side>& sides, const Plan& plan, const std::function<void()>& between = [] {}) {
  for (Side& side : sides) microseconds_a_step(side.step, plan.warmups);
  for (int block = 0; block < plan.blocks; ++block)
    for (Side& side : sides) {
      between();
      side.samples.push_back(microseconds_a_step(side.step, plan.steps));
    }
}

inline std::string as_json(const std::vector<Side>& sides) {
  std::ostringstream out;
  const char* separator = "";
  for (const Side& side : sides) {
    out << separator << '"' << side.name << "\": [";
    separator = "";
    for (double sample : side.samples) {
      out << separator << sample;
      separator = ", ";
    }
    out << ']';
  }
  return out.str();
}

// The line that bench/measure.py reads.
inline void report(const std::vector<Side>& sides) {
  std::cout << "BENCH {\"samples\": {" + as_json(sides) + "}}" << std::endl;
}

}  // namespace bench
