// SPDX-License-Identifier: Apache-2.0
// drivetrain-probe: prints what LibTorch and the devices say as one JSON document on standard
// output, and each step before it is made on standard error. `drivetrain env` and
// `drivetrain doctor` run it, since they do not link LibTorch themselves.
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include <unistd.h>

#include "hardware/probe/document.h"

namespace {

void write_all(int fd, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t count = ::write(fd, text.data() + at, text.size() - at);
    if (count <= 0) return;
    at += static_cast<size_t>(count);
  }
}

}  // namespace

int main() {
  // Drivers' libraries print as they like: only the document may reach standard output.
  const int out = ::dup(STDOUT_FILENO);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  try {
    const auto document = drivetrain::probe::make_document([](const std::string& step) {
      write_all(STDERR_FILENO, "drivetrain-probe: " + step + "\n");
    });
    constexpr auto replace = drivetrain::probe::Json::error_handler_t::replace;
    write_all(out, document.dump(2, ' ', false, replace) + "\n");
  } catch (const std::exception& error) {
    std::cerr << "drivetrain-probe: " << error.what() << "\n";
    return 1;
  }
  // Not exit(): a driver's library that hangs at unloading must not spoil the answer.
  std::fflush(nullptr);
  ::_exit(0);
}
