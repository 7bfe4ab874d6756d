// SPDX-License-Identifier: Apache-2.0
// Rows of text as a table.
#pragma once

#include <string>
#include <vector>

namespace drivetrain::core {

// The first column aligned to the left, the others to the right, two spaces between them; no
// spaces at the end of a line. Rows may have fewer cells than the longest. "" for no rows.
// Widths are counted in bytes: right for ASCII.
std::string table(const std::vector<std::vector<std::string>>& rows);

}  // namespace drivetrain::core
