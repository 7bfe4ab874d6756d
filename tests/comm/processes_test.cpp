// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, by hand-set variables: killed, stopped, thrown out; the inherited socket, a
// busy port, and worlds made again.
#include <drivetrain/comm.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>

#include "core/text.h"

namespace drivetrain {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

// A listening socket on a free port of the loopback interface.
class Listener {
 public:
  Listener() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(fd_, 64);
    socklen_t length = sizeof address;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { ::close(fd_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int fd() const { return fd_; }
  int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

std::string read_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Processes that play one part, with their output in files. Ended at the latest with the object.
class Ranks {
 public:
  using Variables = std::map<std::string, std::string>;

  Ranks(int num_ranks, const std::string& part, const Variables& more = {}, bool pass_socket = true)
      : part_(part) {
    std::string name = std::filesystem::temp_directory_path() / "drivetrain_ranks_XXXXXX";
    folder_ = ::mkdtemp(name.data());
    for (int rank = 0; rank < num_ranks; ++rank) {
      Variables variables = {{"RANK", std::to_string(rank)},
                             {"WORLD_SIZE", std::to_string(num_ranks)},
                             {"MASTER_PORT", std::to_string(listener_.port())},
                             {"OMP_NUM_THREADS", "1"}};
      if (rank == 0 && pass_socket)
        variables["DRIVETRAIN_STORE_FD"] = std::to_string(listener_.fd());
      for (const auto& [name, value] : more) variables[name] = value;
      pids_.push_back(start(rank, variables));
    }
  }
  ~Ranks() {
    for (size_t r = 0; r < pids_.size(); ++r)
      if (!exits_.contains(static_cast<int>(r))) {
        ::kill(pids_[r], SIGKILL);
        ::waitpid(pids_[r], nullptr, 0);
      }
    std::filesystem::remove_all(folder_);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int port() const { return listener_.port(); }
  std::filesystem::path file(int rank, const std::string& what) const {
    return folder_ / (std::to_string(rank) + "." + what);
  }
  std::string errors(int rank) const { return read_file(file(rank, "err")); }
  void signal(int rank, int number) { ::kill(pids_[rank], number); }

  // Waits until all ranks have printed the line.
  void wait_for_line(const std::string& line) {
    const auto deadline = Clock::now() + 30s;
    for (size_t r = 0; r < pids_.size(); ++r)
      while (read_file(file(static_cast<int>(r), "out")).find(line) == std::string::npos) {
        ASSERT_LT(Clock::now(), deadline) << "rank " << r << ": " << errors(static_cast<int>(r));
        std::this_thread::sleep_for(10ms);
      }
  }

  // The exit code, 128 + n for signal n, or -1 if it still runs after `limit`.
  int exit_code(int rank, Clock::duration limit) {
    const auto deadline = Clock::now() + limit;
    while (!exits_.contains(rank)) {
      int status = 0;
      if (::waitpid(pids_[rank], &status, WNOHANG) == pids_[rank])
        exits_[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      else if (Clock::now() >= deadline)
        return -1;
      else
        std::this_thread::sleep_for(5ms);
    }
    return exits_[rank];
  }

 private:
  pid_t start(int rank, const Variables& variables) const {
    std::vector<std::string> entries;
    for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
    for (const char* name : {"ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"})
      if (const char* value = std::getenv(name)) entries.push_back(core::str(name, "=", value));
    entries.push_back("DRIVETRAIN_ERROR_FILE=" + file(rank, "json").string());
    std::vector<char*> environment;
    for (std::string& entry : entries) environment.push_back(entry.data());
    environment.push_back(nullptr);
    std::string program = DRIVETRAIN_RANK_PROGRAM;
    std::string part = part_;
    char* arguments[] = {program.data(), part.data(), nullptr};
    const int out = ::open(file(rank, "out").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    const int err = ::open(file(rank, "err").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::dup2(out, STDOUT_FILENO);
      ::dup2(err, STDERR_FILENO);
      if (rank != 0) ::close(listener_.fd());
      ::execve(program.c_str(), arguments, environment.data());
      ::_exit(127);
    }
    ::close(out);
    ::close(err);
    return pid;
  }

  std::string part_;
  Listener listener_;
  std::filesystem::path folder_;
  std::vector<pid_t> pids_;
  std::map<int, int> exits_;
};

TEST(Processes, AKilledRankIsNamedWithinFiveSeconds) {
  Ranks ranks(3, "reduce");
  ranks.wait_for_line("started");
  std::this_thread::sleep_for(1s);
  const auto killed = Clock::now();
  ranks.signal(1, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(ranks.exit_code(rank, 5s), 3);
    EXPECT_LT(Clock::now() - killed, 5s);
    EXPECT_THAT(ranks.errors(rank),
                AllOf(HasSubstr("cannot complete: rank 1 is gone: silent for "),
                      HasSubstr("it last said that it was "), HasSubstr("all_reduce(sum) #"),
                      HasSubstr(rank == 0 ? "; rank 2 " : "; rank 0 ")));
    EXPECT_THAT(read_file(ranks.file(rank, "json")), HasSubstr("rank 1 is gone"));
  }
}

TEST(Processes, AKilledRankZeroIsNamedThoughItServedTheStore) {
  Ranks ranks(3, "reduce");
  ranks.wait_for_line("started");
  const auto killed = Clock::now();
  ranks.signal(0, SIGKILL);
  for (const int rank : {1, 2}) {
    EXPECT_EQ(ranks.exit_code(rank, 5s), 3);
    EXPECT_LT(Clock::now() - killed, 5s);
    EXPECT_THAT(ranks.errors(rank),
                HasSubstr("rank 0's store at 127.0.0.1:" + std::to_string(ranks.port())));
  }
}

TEST(Processes, AStoppedRankIsNamedThoughItsConnectionsStand) {
  Ranks ranks(2, "reduce");
  ranks.wait_for_line("started");
  const auto stopped = Clock::now();
  ranks.signal(1, SIGSTOP);
#if defined(__SANITIZE_THREAD__)
  const auto limit = 8s;  // A program under the thread sanitizer takes a second to end.
#else
  const auto limit = 5s;
#endif
  EXPECT_EQ(ranks.exit_code(0, limit), 3);
  EXPECT_LT(Clock::now() - stopped, limit);
  EXPECT_THAT(ranks.errors(0), HasSubstr("rank 1 is gone: silent for "));
  ranks.signal(1, SIGKILL);
}

TEST(Processes, AnUncaughtExceptionReachesTheOthersWithItsText) {
  for (const int thrower : {0, 1}) {
    const std::string name = "rank " + std::to_string(thrower);
    Ranks ranks(2, name + " throws");
    const int other = 1 - thrower;
    EXPECT_EQ(ranks.exit_code(other, 20s), 3);
    EXPECT_THAT(ranks.errors(other), HasSubstr(name + " failed computing after barrier #1: sample "
                                                      "17 is bad"));
    EXPECT_EQ(ranks.exit_code(thrower, 5s), 128 + SIGABRT);
    EXPECT_THAT(read_file(ranks.file(thrower, "json")), HasSubstr("sample 17 is bad"));
  }
}

TEST(Processes, MakeWorldsAgainAndSeveralAtOnce) {
  for (const bool pass_socket : {true, false}) {
    int port = 0;
    {
      const Listener free;
      port = free.port();
    }
    Ranks::Variables more;
    // Without the socket, rank 0 opens the port by itself, again for each world.
    if (!pass_socket) more["MASTER_PORT"] = std::to_string(port);
    Ranks ranks(3, "worlds", more, pass_socket);
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(ranks.exit_code(rank, 30s), 0) << ranks.errors(rank);
  }
}

TEST(Processes, RankZeroMayEndFirst) {
  Ranks ranks(3, "rank 0 is first to end");
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(ranks.exit_code(rank, 20s), 0) << ranks.errors(rank);
}

TEST(Processes, ARankThatEndedTooEarlyIsNamed) {
  Ranks ranks(2, "rank 0 leaves");
  EXPECT_EQ(ranks.exit_code(1, 20s), 3);
  EXPECT_THAT(ranks.errors(1), HasSubstr("rank 0 has left the world after 1 collectives"));
  EXPECT_EQ(ranks.exit_code(0, 10s), 0);
}

TEST(Processes, ABusyPortIsNamed) {
  // The listener of Ranks holds the port, and its socket is not passed on.
  Ranks ranks(1, "reduce", {{"WORLD_SIZE", "2"}, {"DRIVETRAIN_TIMEOUT", "2"}}, false);
  EXPECT_EQ(ranks.exit_code(0, 20s), 3);
  EXPECT_THAT(ranks.errors(0),
              AllOf(HasSubstr("rank 0 cannot serve the store at port " +
                              std::to_string(ranks.port()) + ": "),
                    HasSubstr("allowed: a free port; set MASTER_PORT to another")));
}

TEST(Processes, AWrongSocketIsRefused) {
  Ranks none(1, "reduce", {{"WORLD_SIZE", "2"}, {"DRIVETRAIN_STORE_FD", "99"}}, false);
  EXPECT_EQ(none.exit_code(0, 20s), 3);
  EXPECT_THAT(none.errors(0), HasSubstr("DRIVETRAIN_STORE_FD is 99, which is no listening socket"));
  Ranks other(1, "reduce", {{"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(other.exit_code(0, 20s), 3);
  EXPECT_THAT(other.errors(0), HasSubstr("DRIVETRAIN_STORE_FD listens on port " +
                                         std::to_string(other.port()) + ", but MASTER_PORT is 1"));
}

TEST(Processes, ARankWithoutRankZeroGivesUpAtItsTimeout) {
  Ranks ranks(
      1, "reduce",
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}, {"DRIVETRAIN_TIMEOUT", "2"}},
      false);
  EXPECT_EQ(ranks.exit_code(0, 20s), 3);
  EXPECT_THAT(ranks.errors(0), HasSubstr("rank 1 does not reach rank 0's store at 127.0.0.1:1"));
}

TEST(Processes, AServerThatIsNoStoreIsNotWaitedFor) {
  // The listener of Ranks takes connections and never answers.
  Ranks ranks(1, "reduce", {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"DRIVETRAIN_TIMEOUT", "2"}},
              false);
  EXPECT_EQ(ranks.exit_code(0, 10s), 3);
  EXPECT_THAT(
      ranks.errors(0),
      AllOf(HasSubstr("rank 1 does not reach rank 0's store at 127.0.0.1:" +
                      std::to_string(ranks.port()) + ": no store answers there within 2.0 s"),
            HasSubstr("set MASTER_PORT to a free one")));
}

}  // namespace
}  // namespace drivetrain
