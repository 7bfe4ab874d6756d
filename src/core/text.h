// SPDX-License-Identifier: Apache-2.0
// Text for messages: concatenation, lists, and the nearest name to a mistyped one.
#pragma once

#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace drivetrain::core {

// Everything streamed into one string.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// "a, b, c".
std::string join(std::span<const std::string> parts, std::string_view separator = ", ");

std::vector<std::string> split(std::string_view text, char separator);

std::string trim(std::string_view text);
std::string lower(std::string_view text);

// The candidate with the smallest edit distance to `word`, or "" where none is near enough
// (more than a third of its letters differ).
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace drivetrain::core
