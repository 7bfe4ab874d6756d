// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/console.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;

constexpr std::string_view kEraseLine = "\r\x1b[K";
constexpr size_t kPipeAtom = 4096;  // what a pipe that polls writable takes without blocking

bool is_writable(int fd) {
  pollfd descriptor = {fd, POLLOUT, 0};
  return ::poll(&descriptor, 1, 0) > 0;
}

bool same_terminal(int a, int b) {
  struct stat first{};
  struct stat second{};
  return ::isatty(a) != 0 && ::isatty(b) != 0 && ::fstat(a, &first) == 0 &&
         ::fstat(b, &second) == 0 && first.st_rdev == second.st_rdev;
}

}  // namespace

Sink::Sink(int fd) : fd_(fd), terminal_(::isatty(fd) != 0) {
  struct stat status{};
  (void)::fstat(fd, &status);
  if (S_ISSOCK(status.st_mode)) kind_ = Kind::socket;
  if (!terminal_ && !S_ISFIFO(status.st_mode)) return;
  kind_ = Kind::stream;
  // O_NONBLOCK on fd itself would also change it for the shell that shares it.
  reopened_ =
      Fd(::open(str("/proc/self/fd/", fd).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
}

void Sink::put(std::string_view text) {
  if (broken_ || text.empty()) return;
  if (status_drawn_) queue_ += kEraseLine;
  status_drawn_ = false;
  queue_ += text;
}

void Sink::set_status(std::string status) {
  if (broken_ || !terminal_ || status == status_) return;
  if (status_drawn_) queue_ += kEraseLine;
  status_drawn_ = false;
  status_ = std::move(status);
}

ssize_t Sink::write_some() {
  if (kind_ == Kind::socket)
    return ::send(fd_, queue_.data(), queue_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (kind_ == Kind::file || reopened_) return ::write(poll_fd(), queue_.data(), queue_.size());
  if (!is_writable(fd_)) {
    errno = EAGAIN;
    return -1;
  }
  return ::write(fd_, queue_.data(), std::min(queue_.size(), kPipeAtom));
}

void Sink::flush() {
  if (!status_.empty() && !status_drawn_ && !broken_) {
    queue_ += status_;
    status_drawn_ = true;
  }
  size_t written = 0;
  while (!queue_.empty()) {
    const ssize_t count = write_some();
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count < 0) {
      broken_ = true;
      problem_ = std::strerror(errno);
      queue_.clear();
      return;
    }
    written = static_cast<size_t>(count);
    queue_.erase(0, written);
  }
}

Console::Console() : out_(std::make_shared<Sink>(STDOUT_FILENO)) {
  error_ =
      same_terminal(STDOUT_FILENO, STDERR_FILENO) ? out_ : std::make_shared<Sink>(STDERR_FILENO);
}

void Console::say(std::string_view text) { error_->put(str("drivetrain: ", text, "\n")); }

void Console::report_problem(Sink& sink, std::string_view name) {
  const std::string problem = sink.take_problem();
  if (!problem.empty())
    say(str("cannot write to standard ", name, ": ", problem,
            "; the run goes on, what it would print there is dropped"));
}

void Console::flush() {
  out_->flush();
  report_problem(*out_, "output");
  error_->flush();
  report_problem(*error_, "error");
}

}  // namespace drivetrain::cli
