// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/output.h"

#include <drivetrain/error.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;

constexpr size_t kChunk = 1 << 16;
constexpr size_t kLongestKept = 2000;

std::string_view without_newline(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  return line;
}

// Bytes in, bytes out: no echo, and no carriage return before each newline.
void make_raw(const Fd& terminal) {
  termios settings{};
  if (::tcgetattr(terminal.get(), &settings) != 0) return;
  ::cfmakeraw(&settings);
  (void)::tcsetattr(terminal.get(), TCSANOW, &settings);
}

Channel open_terminal(int like, size_t prefix_width) {
  Fd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  std::array<char, 128> name{};
  if (!master || ::grantpt(master.get()) != 0 || ::unlockpt(master.get()) != 0 ||
      ::ptsname_r(master.get(), name.data(), name.size()) != 0)
    return {};
  Fd slave(::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!slave) return {};
  make_raw(slave);
  copy_window_size(like, master, prefix_width);
  return {std::move(master), std::move(slave)};
}

Channel open_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw Error("launch", str("cannot make a pipe: ", std::strerror(errno),
                              "; allowed: what ulimit -n leaves; raise it"));
  return {Fd(ends[0]), Fd(ends[1])};
}

}  // namespace

void LineSplitter::feed(std::string_view chunk, const std::function<void(std::string_view)>& line) {
  while (!chunk.empty()) {
    const size_t newline = chunk.find('\n');
    const size_t size = newline == std::string_view::npos ? chunk.size() : newline + 1;
    const std::string_view part = chunk.substr(0, size);
    chunk.remove_prefix(size);
    const bool whole = newline != std::string_view::npos;
    if (whole && partial_.empty()) {
      line(part);
      continue;
    }
    partial_ += part;
    if (whole || partial_.size() > kLongest) line(take_partial());
  }
}

std::string_view visible_part(std::string_view line) {
  line = without_newline(line);
  while (line.ends_with('\r')) line.remove_suffix(1);
  const size_t back = line.rfind('\r');
  return back == std::string_view::npos ? line : line.substr(back + 1);
}

void LastLines::add(std::string_view line) {
  lines_.emplace_back(visible_part(line).substr(0, kLongestKept));
  if (lines_.size() > kCount) lines_.pop_front();
}

LogFile::LogFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (!file_)
    throw ConfigError(str("cannot create log file ", path, ": ", std::strerror(errno),
                          "; allowed: a folder to write in; choose another --log-dir"));
}

std::string LogFile::write(std::string_view chunk) {
  while (file_ && !chunk.empty()) {
    const ssize_t count = ::write(file_.get(), chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      file_.reset();
      return str("cannot write log file ", path_, ": ", std::strerror(errno),
                 "; the run goes on, the file ends here");
    }
    chunk.remove_prefix(static_cast<size_t>(count));
  }
  return "";
}

void copy_window_size(int like, const Fd& terminal, size_t prefix_width) {
  winsize size{};
  if (::ioctl(like, TIOCGWINSZ, &size) != 0) return;
  const auto width = static_cast<unsigned short>(prefix_width);
  if (size.ws_col > width) size.ws_col = static_cast<unsigned short>(size.ws_col - width);
  (void)::ioctl(terminal.get(), TIOCSWINSZ, &size);
}

Channel open_channel(int like, size_t prefix_width) {
  Channel channel;
  if (::isatty(like) != 0) channel = open_terminal(like, prefix_width);
  if (!channel.read) channel = open_pipe();
  const int flags = ::fcntl(channel.read.get(), F_GETFL);
  ::fcntl(channel.read.get(), F_SETFL, flags | O_NONBLOCK);
  return channel;
}

void RankStream::emit(std::string_view line) {
  last_.add(line);
  if (target_.sink == nullptr) return;
  const bool terminal = target_.sink->is_terminal();
  const bool ended = line.ends_with('\n');
  std::string text = target_.prefix;
  text += terminal ? visible_part(line) : without_newline(line);
  if (ended || !target_.keeps_raw_end) text += '\n';
  target_.sink->put(text);
}

void RankStream::show_status() {
  if (target_.sink == nullptr || !target_.may_hold_status) return;
  const std::string_view bar = visible_part(splitter_.partial());
  target_.sink->set_status(bar.empty() ? "" : str(target_.prefix, bar));
}

void RankStream::pass_on(std::string_view chunk) {
  const std::string problem = log_.write(chunk);
  if (!problem.empty()) target_.console->say(problem);
  splitter_.feed(chunk, [this](std::string_view line) { emit(line); });
  show_status();
}

RankStream::Read RankStream::read_chunk() {
  std::array<char, kChunk> buffer;
  const ssize_t count = ::read(source_.get(), buffer.data(), buffer.size());
  if (count > 0) {
    pass_on({buffer.data(), static_cast<size_t>(count)});
    return Read::more;
  }
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Read::nothing_yet;
  finish();  // end of file, or EIO: the last one closed the pseudo-terminal
  return Read::ended;
}

void RankStream::finish() {
  if (!source_) return;
  source_.reset();
  const std::string rest = splitter_.take_partial();
  show_status();
  if (!rest.empty()) emit(rest);
}

}  // namespace drivetrain::cli
