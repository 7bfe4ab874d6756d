// SPDX-License-Identifier: Apache-2.0
// The picture with the values under the pointer: one file that needs nothing else.
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "hardware/memory/record.h"

namespace drivetrain::hardware {

using core::str;
using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kStyle = R"(
body { font-family: sans-serif; margin: 1em; background: #fff; color: #111; }
svg { max-width: 100%; height: auto; }
#values { position: fixed; display: none; pointer-events: none; background: #fff;
  border: 1px solid #999; padding: 4px 8px; font-size: 13px; }
#values td + td { text-align: right; padding-left: 1em; }
)";

// The pointer's place in the picture's units gives the step, a binary search its point. Text is set
// as text, never as markup.
constexpr const char* kScript = R"(
const svg = document.querySelector("svg"), box = document.getElementById("values");
const cursor = document.createElementNS(svg.namespaceURI, "line");
cursor.setAttribute("stroke", "#111");
svg.appendChild(cursor);
function sizeText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; ++unit; }
  return bytes.toFixed(unit ? 1 : 0) + " " + units[unit];
}
function pointAt(step) {
  let low = 0, high = data.points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (data.points[middle].last_step < step) low = middle + 1; else high = middle;
  }
  return data.points[low];
}
function rowsOf(point) {
  const steps = point.first_step === point.last_step ? "step " + point.first_step
    : "steps " + point.first_step + " to " + point.last_step;
  const rows = [[steps, ""], ["peak", sizeText(point.peak)]];
  for (const name of data.categories) rows.push([name, sizeText(point[name])]);
  rows.push(["allocated at the end", sizeText(point.allocated)]);
  for (const label of Object.keys(point.marks || {}))
    rows.push(["at " + label, sizeText(point.marks[label])]);
  return rows;
}
function hide() { box.style.display = "none"; cursor.setAttribute("visibility", "hidden"); }
function show(event) {
  const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(
    svg.getScreenCTM().inverse());
  const step = Math.floor((place.x - data.left) / (data.right - data.left) * data.steps);
  if (step < 0 || step >= data.steps) return hide();
  box.replaceChildren(...rowsOf(pointAt(step)).map(cells => {
    const row = document.createElement("tr");
    for (const cell of cells) row.appendChild(document.createElement("td")).textContent = cell;
    return row;
  }));
  for (const [name, value] of [["x1", place.x], ["x2", place.x], ["y1", data.top],
    ["y2", data.bottom], ["visibility", "visible"]]) cursor.setAttribute(name, value);
  box.style.display = "table";
  box.style.left = Math.min(event.clientX + 16, innerWidth - box.offsetWidth - 8) + "px";
  box.style.top = Math.min(event.clientY + 16, innerHeight - box.offsetHeight - 8) + "px";
}
svg.addEventListener("pointermove", show);
svg.addEventListener("pointerleave", hide);
)";

// A document inside <script>, in ASCII: nothing in it can end the element or the CDATA section
// around it.
std::string script_text(const Json& document) {
  std::string text;
  for (const char c : document.dump(-1, ' ', true, Json::error_handler_t::replace)) {
    if (c == '<')
      text += "\\u003c";
    else if (c == '>')
      text += "\\u003e";
    else
      text += c;
  }
  return text;
}

Json data_of(const Record& record) {
  Json data = json_of(record);
  const Axes axes = axes_of(record);
  data["categories"] = Json::array();
  // From the top of the stack down, as the legend has them.
  for (int i = kNumMemoryCategories; i-- > 0;)
    data["categories"].push_back(name_of(static_cast<MemoryCategory>(i)));
  data["left"] = axes.x(0);
  data["right"] = axes.x(static_cast<double>(axes.steps));
  data["top"] = axes.y(axes.top_bytes);
  data["bottom"] = axes.y(0);
  return data;
}

}  // namespace

std::string html_of(const Record& record) {
  return str(
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n"
      "<meta charset=\"utf-8\"/>\n<title>",
      xml_text(record.title), "</title>\n<style>", kStyle, "</style>\n</head>\n<body>\n",
      svg_of(record), "<table id=\"values\"></table>\n<pre>", xml_text(summary_of(record)),
      "</pre>\n<script>//<![CDATA[\nconst data = ", script_text(data_of(record)), ";", kScript,
      "//]]></script>\n</body>\n</html>\n");
}

}  // namespace drivetrain::hardware
