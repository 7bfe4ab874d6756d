// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "core/text.h"

namespace drivetrain::core {
namespace {

std::string reason_of(int error) { return std::generic_category().message(error); }

// "" or the reason.
std::string write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return reason_of(errno);
    text.remove_prefix(static_cast<size_t>(written));
  }
  // Some file systems tell of a full disk only now.
  return ::fsync(file) == 0 ? "" : reason_of(errno);
}

}  // namespace

std::string write_file(const std::filesystem::path& path, std::string_view text) {
  static std::atomic<int> count{0};
  std::filesystem::path partial = path;
  partial += str(".", ::getpid(), ".", ++count, ".partial");
  const int file = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return reason_of(errno);
  std::string reason = write_all(file, text);
  if (::close(file) != 0 && reason.empty()) reason = reason_of(errno);
  if (reason.empty() && std::rename(partial.c_str(), path.c_str()) != 0) reason = reason_of(errno);
  if (!reason.empty()) ::unlink(partial.c_str());
  return reason;
}

}  // namespace drivetrain::core
