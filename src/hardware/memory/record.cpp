// SPDX-License-Identifier: Apache-2.0
#include "hardware/memory/record.h"

#include <drivetrain/error.h>

#include <array>
#include <ctime>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/sizes.h"
#include "core/table.h"
#include "core/text.h"

namespace drivetrain {

using core::str;

const char* name_of(MemoryCategory category) {
  constexpr std::array<const char*, kNumMemoryCategories> kNames = {
      "parameters", "buffers", "gradients", "optimizer", "other", "activations"};
  return kNames[static_cast<size_t>(category)];
}

namespace hardware {

using Json = nlohmann::ordered_json;

namespace {

Json json_of(const MemoryPoint& point) {
  Json json = {{"first_step", point.first_step}, {"last_step", point.last_step}};
  for (int i = 0; i < kNumMemoryCategories; ++i)
    json[name_of(static_cast<MemoryCategory>(i))] = point.bytes[static_cast<size_t>(i)];
  json["allocated"] = point.allocated;
  json["peak"] = point.peak;
  if (!point.marks.empty()) json["marks"] = point.marks;
  return json;
}

std::vector<std::string> row(const std::string& name, int64_t last, const Largest& largest) {
  return {name, core::format_bytes(last), core::format_bytes(largest.bytes), str(largest.step)};
}

std::string heading(const Record& record) {
  const History& history = record.history;
  std::string text = str(record.device_name(), " memory, ", history.steps(),
                         history.steps() == 1 ? " step" : " steps");
  if (record.capacity_bytes > 0)
    text += str(record.has_limit ? ", limit " : ", of ", core::format_bytes(record.capacity_bytes));
  return text + "\n";
}

}  // namespace

Json json_of(const Record& record) {
  const History& history = record.history;
  Json json = {{"format", "drivetrain.memory_timeline"},
               {"version", 1},
               {"title", record.title},
               {"backend", record.backend},
               {"device", record.device},
               {"time", time_now()},
               {"steps", history.steps()},
               {"steps_per_point", history.steps_per_point()},
               {"capacity_bytes", record.capacity_bytes > 0 ? Json(record.capacity_bytes) : Json()},
               {"peaks", record.peaks_are_sampled ? "sampled" : "counted"},
               {"notes", record.notes},
               {"points", Json::array()}};
  for (const MemoryPoint& point : history.points()) json["points"].push_back(json_of(point));
  return json;
}

std::string summary_of(const Record& record) {
  const History& history = record.history;
  std::vector<std::vector<std::string>> rows = {{"", "last step", "largest", "at step"}};
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    rows.push_back(row(name_of(category), history.last()[category],
                       history.largest()[static_cast<size_t>(i)]));
  }
  rows.push_back(row("peak", history.last().peak, history.peak()));
  for (const auto& [label, largest] : history.marks()) {
    const auto found = history.last().marks.find(label);
    rows.push_back(row("at " + label, 0, largest));
    if (found == history.last().marks.end())
      rows.back()[1] = "-";
    else
      rows.back()[1] = core::format_bytes(found->second);
  }
  std::string text = heading(record);
  if (history.steps() > 0) text += core::table(rows);
  for (const std::string& note : record.notes) text += note + "\n";
  return text;
}

std::string dump(const Json& document) {
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

void write_or_throw(const char* call, const std::filesystem::path& path, std::string_view text) {
  const std::string reason = core::write_file(path, text);
  if (!reason.empty())
    throw HardwareError(str(call, ": ", path.string(), " could not be written: ", reason,
                            "; allowed: a file in a folder that exists and may be written to, on a "
                            "disk with room for ",
                            core::format_bytes(static_cast<int64_t>(text.size())),
                            "; see the reason"));
}

}  // namespace hardware
}  // namespace drivetrain
