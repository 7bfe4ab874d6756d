// SPDX-License-Identifier: Apache-2.0
// Writing a whole file, or nothing.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace drivetrain::core {

// Puts `text` in place of the file at `path`: into a temporary file beside it first, which is
// renamed once it is on the disk. "" or the reason of the failure ("No space left on device"); the
// file that was there is untouched then, and nothing is left behind.
std::string write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace drivetrain::core
