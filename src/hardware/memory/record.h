// SPDX-License-Identifier: Apache-2.0
// What a timeline has recorded, and the forms in which it can be read.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hardware/memory/history.h"

namespace drivetrain::hardware {

struct Record {
  std::string title;
  std::string backend;  // "cuda"
  int device = 0;
  int64_t capacity_bytes = 0;  // 0: not known
  bool has_limit = false;      // the capacity is a limit that the user set
  bool peaks_are_sampled = false;
  std::vector<std::string> notes;
  History history{2};

  std::string device_name() const { return backend + ":" + std::to_string(device); }
};

nlohmann::ordered_json json_of(const Record& record);
std::string summary_of(const Record& record);
std::string svg_of(const Record& record);   // an XML document
std::string html_of(const Record& record);  // of one file; well-formed XML, too

// A document as text, whatever bytes the names in it hold.
std::string dump(const nlohmann::ordered_json& document);

// "2026-01-31T12:00:00Z".
std::string time_now();

// Throws HardwareError that names the call, the path and the reason.
void write_or_throw(const char* call, const std::filesystem::path& path, std::string_view text);

// Text between XML tags or quotes: what XML does not allow is replaced by U+FFFD.
std::string xml_text(std::string_view text);

// The first `count` characters, with an ellipsis where there are more. Of valid UTF-8.
std::string cut(const std::string& text, size_t count);

// Where step `step` of `steps` begins and what so many bytes are as height, in the picture's units.
struct Axes {
  int64_t steps = 0, top_bytes = 1, tick_bytes = 1;
  double x(double step) const;
  double y(int64_t bytes) const;
};
Axes axes_of(const Record& record);

// The fills, in the order of the categories.
inline constexpr std::array<const char*, kNumMemoryCategories> kColors = {
    "#0072b2", "#56b4e9", "#e69f00", "#009e73", "#999999", "#f0c8dc"};

}  // namespace drivetrain::hardware
