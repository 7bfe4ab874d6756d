// SPDX-License-Identifier: Apache-2.0
#include "launcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace drivetrain::cli {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

std::pair<Fd, Fd> make_pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

Fd input_of(const std::string& text) {
  if (text.empty()) return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto [read, write] = make_pipe();
  EXPECT_EQ(::write(write.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return std::move(read);
}

[[noreturn]] void become_launcher(const Words& arguments, const LaunchSetting& setting, int in,
                                  int out, int err) {
  if (setting.on_terminal) {
    ::setsid();
    ::ioctl(in, TIOCSCTTY, 0);
  }
  ::dup2(in, 0);
  ::dup2(out, 1);
  ::dup2(err, 2);
  if (!setting.cpus.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : setting.cpus) CPU_SET(static_cast<size_t>(cpu), &set);
    ::sched_setaffinity(0, sizeof set, &set);
  }
  for (const std::string& entry : setting.environment) ::putenv(const_cast<char*>(entry.c_str()));
  std::vector<char*> words = {const_cast<char*>("drivetrain"), const_cast<char*>("launch")};
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(DRIVETRAIN_COMMAND, words.data());
  ::_exit(99);
}

bool append(const Fd& from, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(from.get(), buffer.data(), buffer.size());
  if (count > 0) text.append(buffer.data(), static_cast<size_t>(count));
  return count > 0;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

Launcher::Launcher(const Words& arguments, const LaunchSetting& setting) : start_(Clock::now()) {
  Fd in = input_of(setting.input);
  auto [out, out_end] = make_pipe();
  auto [err, err_end] = make_pipe();
  out_ = std::move(out);
  err_ = std::move(err);
  if (setting.on_terminal) {
    int master = -1;
    int slave = -1;
    winsize size{40, 100, 0, 0};
    EXPECT_EQ(::openpty(&master, &slave, nullptr, nullptr, &size), 0);
    ::fcntl(master, F_SETFD, FD_CLOEXEC);
    terminal_ = Fd(master);
    in = Fd(slave);
    out_.reset();
    err_.reset();
  }
  if (setting.closed_output) out_.reset();
  pid_ = ::fork();
  if (pid_ == 0) {
    const bool tty = setting.on_terminal;
    become_launcher(arguments, setting, in.get(), tty ? in.get() : out_end.get(),
                    tty ? in.get() : err_end.get());
  }
}

Launcher::~Launcher() { reap(true); }

void Launcher::reap(bool kill_it) {
  if (pid_ <= 0) return;
  if (kill_it) ::kill(pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = 0;
  result_.code = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

void Launcher::signal(int signal) const { ::kill(pid_, signal); }

void Launcher::type(const std::string& keys) const {
  EXPECT_EQ(::write(terminal_.get(), keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
}

// False once all streams have ended.
bool Launcher::read_some(int milliseconds) {
  std::array<std::pair<Fd*, std::string*>, 3> streams = {
      {{&out_, &result_.out}, {&err_, &result_.err}, {&terminal_, &result_.out}}};
  std::vector<pollfd> polled;
  for (const auto& [fd, text] : streams) polled.push_back({fd->get(), POLLIN, 0});
  if (std::all_of(polled.begin(), polled.end(), [](const pollfd& p) { return p.fd < 0; }))
    return false;
  ::poll(polled.data(), polled.size(), milliseconds);
  for (size_t i = 0; i < streams.size(); ++i)
    if (polled[i].revents != 0 && !append(*streams[i].first, *streams[i].second))
      streams[i].first->reset();
  return true;
}

std::string Launcher::wait_for(const std::string& text, size_t times) {
  const auto limit = Clock::now() + 10s;
  while (count_of(result_.out, text) < times)
    if (Clock::now() > limit || !read_some(100)) {
      ADD_FAILURE() << "no \"" << text << "\" in:\n" << result_.out << "\nerr:\n" << result_.err;
      break;
    }
  return result_.out;
}

LaunchResult Launcher::wait() {
  const auto limit = Clock::now() + 20s;
  while (read_some(100))
    if (Clock::now() > limit) {
      ADD_FAILURE() << "the launcher hangs; out:\n" << result_.out << "\nerr:\n" << result_.err;
      reap(true);
      return result_;
    }
  reap(false);
  result_.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  return result_;
}

LaunchResult launch_and_wait(const Words& arguments, const LaunchSetting& setting) {
  return Launcher(arguments, setting).wait();
}

Words script(int ranks, const std::string& text, Words options) {
  options.insert(options.begin(), {"--cpu", "-n", std::to_string(ranks)});
  options.insert(options.end(), {"sh", "-c", text});
  return options;
}

Words program(int ranks, const Words& arguments, Words options) {
  options.insert(options.begin(), {"--cpu", "-n", std::to_string(ranks)});
  options.emplace_back(DRIVETRAIN_RANK_PROGRAM);
  options.insert(options.end(), arguments.begin(), arguments.end());
  return options;
}

bool is_gone(pid_t pid, double seconds) {
  const auto limit = Clock::now() + std::chrono::duration<double>(seconds);
  while (true) {
    const std::string stat = contents("/proc/" + std::to_string(pid) + "/stat");
    const size_t name_end = stat.rfind(") ");
    if (name_end == std::string::npos || stat[name_end + 2] == 'Z') return true;
    if (Clock::now() > limit) return false;
    std::this_thread::sleep_for(5ms);
  }
}

std::vector<int> numbers_after(const std::string& text, const std::string& label) {
  std::vector<int> numbers;
  for (size_t at = text.find(label); at != std::string::npos; at = text.find(label, at + 1))
    numbers.push_back(std::atoi(text.c_str() + at + label.size()));
  return numbers;
}

Folder::Folder() : path_(::testing::TempDir() + "launch-XXXXXX") {
  EXPECT_NE(::mkdtemp(path_.data()), nullptr);
}

Folder::~Folder() {
  std::error_code ignored;  // a test that removed it itself
  std::filesystem::remove_all(path_, ignored);
}

std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace drivetrain::cli
