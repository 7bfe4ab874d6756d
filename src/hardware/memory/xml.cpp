// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "hardware/memory/record.h"

namespace drivetrain::hardware {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Valid UTF-8: nlohmann's writer replaces what is not.
std::string valid_utf8(std::string_view text) {
  using Json = nlohmann::json;
  const std::string quoted = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  return Json::parse(quoted).get<std::string>();
}

// The entity or replacement for one byte, "" for one that may stand as it is.
std::string_view escape_of(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    default: {
      const auto byte = static_cast<unsigned char>(c);
      return byte < 0x20 && c != '\t' && c != '\n' && c != '\r' ? kReplacement : "";
    }
  }
}

}  // namespace

std::string xml_text(std::string_view text) {
  const std::string valid = valid_utf8(text);
  std::string escaped;
  for (size_t i = 0; i < valid.size(); ++i) {
    // U+FFFE and U+FFFF are no characters of XML.
    if (valid.compare(i, 2, "\xEF\xBF") == 0 && static_cast<unsigned char>(valid[i + 2]) >= 0xBE) {
      escaped += kReplacement;
      i += 2;
    } else if (const std::string_view escape = escape_of(valid[i]); !escape.empty()) {
      escaped += escape;
    } else {
      escaped += valid[i];
    }
  }
  return escaped;
}

std::string cut(const std::string& text, size_t count) {
  const auto begins_character = [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  };
  size_t seen = 0;
  for (size_t i = 0; i < text.size(); ++i)
    if (begins_character(text[i]) && seen++ == count) return text.substr(0, i) + "\xE2\x80\xA6";
  return text;
}

}  // namespace drivetrain::hardware
