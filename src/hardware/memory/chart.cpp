// SPDX-License-Identifier: Apache-2.0
// The picture: areas stacked by category over the steps. A point is drawn as wide as its steps, so
// one step is a picture, too; corners at which nothing changes are left out, so a steady run makes
// a small file.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>

#include "core/sizes.h"
#include "core/text.h"
#include "hardware/memory/record.h"

namespace drivetrain::hardware {

using core::str;

namespace {

constexpr double kWidth = 960, kLeft = 92, kRight = 720, kTop = 84, kBottom = 420;
constexpr double kLegendLine = 20;
// A capacity so many times above all else is told in words: as a line it would flatten the rest.
constexpr int64_t kFarAbove = 4;

// With one decimal at most.
std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  std::string result = text.data();
  if (result.ends_with(".0")) result.resize(result.size() - 2);
  return result;
}

int64_t stack_of(const MemoryPoint& point, size_t categories) {
  int64_t sum = 0;
  for (size_t i = 0; i < categories; ++i) sum += point.bytes[i];
  return sum;
}

int64_t largest_drawn(const Record& record) {
  int64_t largest = 0;
  for (const MemoryPoint& point : record.history.points())
    largest = std::max({largest, point.peak, stack_of(point, point.bytes.size())});
  return largest;
}

bool draws_capacity(const Record& record) {
  const int64_t largest = largest_drawn(record);
  return record.capacity_bytes > 0 &&
         (largest == 0 || record.capacity_bytes / kFarAbove <= largest);
}

std::string text_at(double x, double y, const char* attributes, std::string_view text) {
  return str("<text x=\"", number(x), "\" y=\"", number(y), "\" ", attributes, ">", xml_text(text),
             "</text>\n");
}

std::string line(double x1, double y1, double x2, double y2, const char* attributes) {
  return str("<line x1=\"", number(x1), "\" y1=\"", number(y1), "\" x2=\"", number(x2), "\" y2=\"",
             number(y2), "\" ", attributes, "/>\n");
}

using Height = std::function<int64_t(const MemoryPoint&)>;

struct Corner {
  std::string x, y;
};

// The outline of `height` over the steps, from left to right: two corners a level.
std::vector<Corner> outline(const Record& record, const Axes& axes, const Height& height) {
  std::vector<Corner> corners;
  for (const MemoryPoint& point : record.history.points()) {
    const std::string y = number(axes.y(height(point)));
    const std::string end = number(axes.x(static_cast<double>(point.last_step + 1)));
    if (!corners.empty() && corners.back().y == y) {
      corners.back().x = end;
      continue;
    }
    corners.push_back({number(axes.x(static_cast<double>(point.first_step))), y});
    corners.push_back({end, y});
  }
  return corners;
}

std::string path_of(const std::vector<Corner>& corners) {
  std::string path;
  for (const Corner& corner : corners)
    path += str(path.empty() ? "M" : "L", corner.x, " ", corner.y);
  return path;
}

std::string areas(const Record& record, const Axes& axes) {
  std::string text;
  for (size_t i = 0; i < kColors.size(); ++i) {
    auto corners =
        outline(record, axes, [i](const MemoryPoint& point) { return stack_of(point, i + 1); });
    const auto below =
        outline(record, axes, [i](const MemoryPoint& point) { return stack_of(point, i); });
    corners.insert(corners.end(), below.rbegin(), below.rend());
    if (corners.empty()) continue;
    const char* name = name_of(static_cast<MemoryCategory>(i));
    text += str("<path class=\"area\" id=\"", name, "\" fill=\"", kColors[i], "\" d=\"",
                path_of(corners), "Z\"><title>", name, "</title></path>\n");
  }
  return text;
}

std::string dashes(size_t index) { return str(2 + index % 4 * 2, " ", 2 + index / 4 * 2); }

std::string mark_lines(const Record& record, const Axes& axes) {
  std::string text;
  size_t index = 0;
  for (const auto& [label, largest] : record.history.marks()) {
    // A step without the mark breaks the line.
    std::string path;
    for (const MemoryPoint& point : record.history.points()) {
      const auto found = point.marks.find(label);
      if (found == point.marks.end()) continue;
      path += str("M", number(axes.x(static_cast<double>(point.first_step))), " ",
                  number(axes.y(found->second)), "H",
                  number(axes.x(static_cast<double>(point.last_step + 1))));
    }
    text += str("<path class=\"mark\" fill=\"none\" stroke=\"#333\" stroke-dasharray=\"",
                dashes(index++), "\" d=\"", path, "\"><title>", xml_text("at " + label),
                "</title></path>\n");
  }
  return text;
}

// The tick's own unit, so that every label is exact.
std::string bytes_label(int64_t bytes, int64_t tick) {
  constexpr std::array<const char*, 5> names = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  int64_t factor = 1;
  for (; unit + 1 < names.size() && tick / factor >= 1024; ++unit) factor *= 1024;
  return str(bytes / factor, " ", names[unit]);
}

// 1, 2 or 5 times a power of ten, so that there are seven at most.
int64_t step_tick(int64_t steps) {
  for (int64_t power = 1;; power *= 10)
    for (const int64_t factor : {1, 2, 5})
      if (steps / (factor * power) <= 6) return factor * power;
}

std::string grid(const Axes& axes) {
  std::string text;
  for (int64_t bytes = 0; bytes <= axes.top_bytes; bytes += axes.tick_bytes) {
    text += line(kLeft, axes.y(bytes), kRight, axes.y(bytes), "stroke=\"#ddd\"");
    text += text_at(kLeft - 8, axes.y(bytes) + 4, "text-anchor=\"end\"",
                    bytes_label(bytes, axes.tick_bytes));
  }
  for (int64_t step = 0; step <= axes.steps; step += step_tick(axes.steps)) {
    const double x = axes.x(static_cast<double>(step));
    text += line(x, kBottom, x, kBottom + 5, "stroke=\"#333\"");
    text += text_at(x, kBottom + 20, "text-anchor=\"middle\"", str(step));
  }
  return text + line(kLeft, kBottom, kRight, kBottom, "stroke=\"#333\"") +
         line(kLeft, kTop, kLeft, kBottom, "stroke=\"#333\"") +
         text_at((kLeft + kRight) / 2, kBottom + 42, "text-anchor=\"middle\"", "step");
}

std::string capacity_line(const Record& record, const Axes& axes) {
  if (!draws_capacity(record)) return "";
  const double y = axes.y(record.capacity_bytes);
  return line(kLeft, y, kRight, y, "id=\"capacity\" stroke=\"#c00\" stroke-dasharray=\"8 4\"") +
         text_at(kRight - 4, y - 5, "text-anchor=\"end\" fill=\"#c00\"",
                 str(record.has_limit ? "limit " : "device ",
                     core::format_bytes(record.capacity_bytes)));
}

std::string peak_marker(const Record& record, const Axes& axes) {
  const Largest& peak = record.history.peak();
  if (record.history.steps() == 0) return "";
  const double x = axes.x(static_cast<double>(peak.step) + 0.5), y = axes.y(peak.bytes);
  const bool on_the_right = x > (kLeft + kRight) / 2;
  const auto corners = outline(record, axes, [](const MemoryPoint& point) { return point.peak; });
  return str("<path id=\"peaks\" fill=\"none\" stroke=\"#111\" d=\"", path_of(corners), "\"/>\n",
             "<circle id=\"peak\" cx=\"", number(x), "\" cy=\"", number(y),
             "\" r=\"4\" fill=\"#fff\" stroke=\"#111\" stroke-width=\"2\"/>\n") +
         text_at(x + (on_the_right ? -8 : 8), y - 8,
                 on_the_right ? "text-anchor=\"end\" font-weight=\"bold\""
                              : "text-anchor=\"start\" font-weight=\"bold\"",
                 str("peak ", core::format_bytes(peak.bytes), ", step ", peak.step));
}

std::string legend(const Record& record) {
  const double x = kRight + 20;
  double y = kTop + 8;
  std::string text = text_at(x, y - 14, "fill=\"#555\"", "largest in a step");
  for (size_t next = kColors.size(); next > 0; --next, y += kLegendLine) {
    const size_t i = next - 1;
    text += str("<rect x=\"", number(x), "\" y=\"", number(y - 2),
                "\" width=\"12\" height=\"12\" "
                "fill=\"",
                kColors[i], "\"/>\n");
    text += text_at(x + 18, y + 8, "",
                    str(name_of(static_cast<MemoryCategory>(i)), " ",
                        core::format_bytes(record.history.largest()[i].bytes)));
  }
  size_t index = 0;
  for (const auto& [label, largest] : record.history.marks()) {
    const std::string style = str("stroke=\"#333\" stroke-dasharray=\"", dashes(index++), "\"");
    text += line(x, y + 4, x + 14, y + 4, style.c_str());
    text += text_at(x + 18, y + 8, "",
                    str("at ", cut(label, 14), " ", core::format_bytes(largest.bytes)));
    y += kLegendLine;
  }
  return text;
}

std::string subtitle(const Record& record) {
  const int64_t steps = record.history.steps();
  std::string text = str(record.device_name(), ", ", steps, steps == 1 ? " step" : " steps");
  if (record.history.steps_per_point() > 1)
    text += str(", the largest of each ", record.history.steps_per_point());
  if (record.peaks_are_sampled) text += ", peaks sampled";
  if (record.capacity_bytes > 0 && !draws_capacity(record))
    text += str(", ", record.has_limit ? "limit " : "device ",
                core::format_bytes(record.capacity_bytes), " (above the picture)");
  return text;
}

}  // namespace

double Axes::x(double step) const {
  return steps == 0 ? kLeft : kLeft + (kRight - kLeft) * step / static_cast<double>(steps);
}

double Axes::y(int64_t bytes) const {
  return kBottom - (kBottom - kTop) * static_cast<double>(bytes) / static_cast<double>(top_bytes);
}

Axes axes_of(const Record& record) {
  Axes axes;
  axes.steps = record.history.steps();
  int64_t top = std::max<int64_t>(largest_drawn(record), 1);
  if (draws_capacity(record)) top = std::max(top, record.capacity_bytes);
  while (top / axes.tick_bytes >= 6) axes.tick_bytes *= 2;
  axes.top_bytes = (top + axes.tick_bytes - 1) / axes.tick_bytes * axes.tick_bytes;
  return axes;
}

std::string svg_of(const Record& record) {
  const Axes axes = axes_of(record);
  const auto marks = static_cast<double>(record.history.marks().size());
  const double height = std::max(kBottom + 60, kTop + (kColors.size() + marks + 1) * kLegendLine);
  std::string text =
      str("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", number(kWidth), " ",
          number(height), "\" width=\"", number(kWidth), "\" height=\"", number(height),
          "\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#111\" role=\"img\">\n<title>",
          xml_text(record.title), "</title>\n<desc>", xml_text(summary_of(record)), "</desc>\n",
          "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
  text += text_at(kLeft, 30, "font-size=\"18\" font-weight=\"bold\"", cut(record.title, 90));
  text += text_at(kLeft, 52, "fill=\"#555\"", subtitle(record));
  text += grid(axes) + areas(record, axes) + mark_lines(record, axes) + peak_marker(record, axes) +
          capacity_line(record, axes) + legend(record);
  if (record.history.steps() == 0)
    text += text_at((kLeft + kRight) / 2, (kTop + kBottom) / 2, "text-anchor=\"middle\"",
                    "no step has ended yet");
  return text + "</svg>\n";
}

}  // namespace drivetrain::hardware
