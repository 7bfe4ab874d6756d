// SPDX-License-Identifier: Apache-2.0
// What the tests of the launcher launch: one small deed a call.
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

int variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? -1 : std::atoi(value);
}

// Whoever dies by anything but SIGKILL would not show that the launcher kills.
void ignore_polite_signals() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) std::signal(signal, SIG_IGN);
}

[[noreturn]] void sleep_for_ever() {
  while (true) ::pause();
}

void say_pid(const char* what) {
  std::printf("%s %d\n", what, static_cast<int>(::getpid()));
  std::fflush(stdout);
}

int affinity(char** /*arguments*/) {
  cpu_set_t set;
  ::sched_getaffinity(0, sizeof set, &set);
  std::string line = "cpus";
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) line += " " + std::to_string(cpu);
  std::printf("%s threads %d\n", line.c_str(), variable("OMP_NUM_THREADS"));
  return 0;
}

// Rank 0 accepts on the socket that it inherited, the others connect to MASTER_PORT; each sends
// its rank.
int meet(char** /*arguments*/) {
  const int others = variable("WORLD_SIZE") - 1;
  if (variable("RANK") == 0) {
    int sum = 0;
    for (int i = 0; i < others; ++i) {
      const int peer = ::accept(variable("DRIVETRAIN_STORE_FD"), nullptr, nullptr);
      int rank = 0;
      if (::recv(peer, &rank, sizeof rank, MSG_WAITALL) != sizeof rank) return 1;
      sum += rank;
      ::close(peer);
    }
    std::printf("sum %d port %d\n", sum, variable("MASTER_PORT"));
    return 0;
  }
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(variable("MASTER_PORT")));
  ::inet_pton(AF_INET, std::getenv("MASTER_ADDR"), &to.sin_addr);
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const int rank = variable("RANK");
  if (::connect(socket, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return 2;
  return ::send(socket, &rank, sizeof rank, 0) == sizeof rank ? 0 : 3;
}

int stubborn(char** /*arguments*/) {
  ignore_polite_signals();
  say_pid("pid");
  sleep_for_ever();
}

// A child, a child in a session of its own, and a daemon (whose parent is gone): all stubborn.
int tree(char** arguments) {
  ignore_polite_signals();
  if (::fork() == 0) {
    say_pid("pid");
    sleep_for_ever();
  }
  if (::fork() == 0) {
    ::setsid();
    say_pid("pid");
    sleep_for_ever();
  }
  if (::fork() == 0) {
    ::setsid();
    if (::fork() != 0) ::_exit(0);
    say_pid("pid");
    sleep_for_ever();
  }
  say_pid("pid");
  if (arguments[0] != nullptr) {  // leaves the others behind
    ::usleep(200'000);
    return std::atoi(arguments[0]);
  }
  sleep_for_ever();
}

// N lines in pieces, so that careless passing-on would tear or mix them.
int lines(char** arguments) {
  const int count = std::atoi(arguments[0]);
  const std::string rank = std::to_string(variable("RANK"));
  for (int i = 0; i < count; ++i) {
    const std::string line =
        "<" + std::string(static_cast<size_t>(i % 97), rank[0]) + " " + std::to_string(i) + ">\n";
    const size_t cut = line.size() * static_cast<size_t>(i % 5) / 5;
    const int stream = i % 2 + 1;
    if (::write(stream, line.data(), cut) < 0) return 1;
    if (::write(stream, line.data() + cut, line.size() - cut) < 0) return 1;
  }
  return 0;
}

int long_line(char** arguments) {
  std::string line(static_cast<size_t>(std::atoi(arguments[0])),
                   'a' + static_cast<char>(variable("RANK")));
  std::printf("%s\n", line.c_str());
  return 0;
}

int terminals(char** /*arguments*/) {
  winsize size{};
  ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
  std::printf("in %d out %d err %d columns %d\n", ::isatty(0), ::isatty(1), ::isatty(2),
              size.ws_col);
  return 0;
}

const std::map<std::string, std::function<int(char**)>> kDeeds = {
    {"affinity", affinity}, {"meet", meet},      {"stubborn", stubborn},   {"tree", tree},
    {"lines", lines},       {"long", long_line}, {"terminals", terminals},
};

}  // namespace

int main(int argc, char** argv) {
  const auto deed = argc > 1 ? kDeeds.find(argv[1]) : kDeeds.end();
  return deed == kDeeds.end() ? 98 : deed->second(argv + 2);
}
