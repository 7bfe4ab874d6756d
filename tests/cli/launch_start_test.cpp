// SPDX-License-Identifier: Apache-2.0
// How ranks are started: environment, ports, cores, streams, and what cannot be started.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <thread>

#include <sched.h>
#include <sys/resource.h>

#include "core/text.h"
#include "launcher.h"

namespace drivetrain::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<int> own_cpus() {
  cpu_set_t set;
  ::sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  return cpus;
}

TEST(LaunchStart, EveryRankKnowsItsPlace) {
  for (const int size : {1, 2, 3, 4, 7}) {
    const LaunchResult result = launch_and_wait(script(
        size,
        "echo \"$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE "
        "$ROLE_RANK/$ROLE_WORLD_SIZE $MASTER_ADDR $TORCHELASTIC_RESTART_COUNT "
        "$TORCHELASTIC_MAX_RESTARTS $DRIVETRAIN_CPU\"",
        {"--prefix"}));
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.err, "");
    for (int r = 0; r < size; ++r)
      EXPECT_THAT(result.out, HasSubstr(core::str("[", r, "] ", r, "/", size, " ", r, "/", size,
                                                  " 0/1 ", r, "/", size, " 127.0.0.1 0 0 1\n")));
  }
}

TEST(LaunchStart, MoreRanksThanOpenFilesAllowAndTheyKeepThatLimit) {
  rlimit original{};
  ::getrlimit(RLIMIT_NOFILE, &original);
  const rlimit few{120, original.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &few);
  const LaunchResult result = launch_and_wait(script(40, "ulimit -Sn", {"--no-prefix"}));
  ::setrlimit(RLIMIT_NOFILE, &original);
  EXPECT_EQ(result.code, 0) << result.err;
  const auto lines = core::split(result.out, '\n');
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "120"), 40);
}

TEST(LaunchStart, AllRanksShareTheRunIdAndLaunchesDoNot) {
  std::set<std::string> ids;
  for (int i = 0; i < 2; ++i) {
    const std::string out =
        launch_and_wait(script(2, "echo $TORCHELASTIC_RUN_ID", {"--no-prefix"})).out;
    const auto lines = core::split(out, '\n');
    ASSERT_EQ(lines.size(), 3U) << out;
    EXPECT_EQ(lines[0], lines[1]);
    ids.insert(lines[0]);
  }
  EXPECT_EQ(ids.size(), 2U);
}

TEST(LaunchStart, AnOuterLaunchersVariablesAreReplaced) {
  LaunchSetting setting;
  setting.environment = {"RANK=5", "WORLD_SIZE=9", "MASTER_PORT=1", "DRIVETRAIN_STORE_FD=77",
                         "TORCHELASTIC_USE_AGENT_STORE=True"};
  const LaunchResult result =
      launch_and_wait(script(2,
                             "echo $RANK $WORLD_SIZE ${DRIVETRAIN_STORE_FD:-none} "
                             "${TORCHELASTIC_USE_AGENT_STORE:-no}; "
                             "test $MASTER_PORT -gt 1"),
                      setting);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("[1] 1 2 none no\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("77")));
}

TEST(LaunchStart, Launches20PairsAtOnceAndEachMeetsOnItsPort) {
  for (int round = 0; round < 20; ++round) {
    Launcher first(program(3, {"meet"}));
    Launcher second(program(3, {"meet"}));
    const LaunchResult one = first.wait();
    const LaunchResult two = second.wait();
    EXPECT_EQ(one.code, 0) << one.err;
    EXPECT_EQ(two.code, 0) << two.err;
    EXPECT_EQ(numbers_after(one.out, "sum "), std::vector<int>{3});
    EXPECT_NE(numbers_after(one.out, "port "), numbers_after(two.out, "port "));
  }
}

TEST(LaunchStart, AGivenPortIsHeldForRankZeroAndRefusedToOthers) {
  Launcher holder(script(1, "echo \"port $MASTER_PORT\"; sleep 60"));
  const int port = numbers_after(holder.wait_for("port "), "port ").at(0);
  const LaunchResult second =
      launch_and_wait(script(2, "true", {"--main-process-port", std::to_string(port)}));
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err,
              HasSubstr(core::str("drivetrain: port ", port, " of 127.0.0.1 is in use")));
  holder.signal(SIGTERM);
  EXPECT_EQ(holder.wait().code, 143);
  const LaunchResult third =
      launch_and_wait(program(2, {"meet"}, {"--main-process-port", std::to_string(port)}));
  EXPECT_EQ(third.code, 0) << third.err;
  EXPECT_THAT(third.out, HasSubstr(core::str("port ", port)));
}

// What this process would hand to any child: those of whoever runs the tests included.
int inherited_descriptors() {
  FILE* pipe = ::popen("ls /proc/self/fd | wc -l", "r");
  int count = -1;
  EXPECT_EQ(std::fscanf(pipe, "%d", &count), 1);
  ::pclose(pipe);
  return count;
}

TEST(LaunchStart, OnlyRankZeroInheritsTheSocketAndNothingElseIsLeaked) {
  const std::string out =
      launch_and_wait(script(2, "echo \"descriptors $(ls /proc/self/fd | wc -l)\"")).out;
  const int usual = inherited_descriptors();
  EXPECT_THAT(out, HasSubstr(core::str("[0] descriptors ", usual + 1, "\n")));
  EXPECT_THAT(out, HasSubstr(core::str("[1] descriptors ", usual, "\n")));
}

TEST(LaunchStart, TwoMachinesMakeOneWorld) {
  const int port =
      numbers_after(launch_and_wait(script(1, "echo \"port $MASTER_PORT\"")).out, "port ").at(0);
  const auto machine = [&](const char* rank) {
    return program(4, {"meet"},
                   {"--num-machines", "2", "--machine-rank", rank, "--main-process-ip", "127.0.0.1",
                    "--main-process-port", std::to_string(port)});
  };
  Launcher first(machine("0"));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the other machine comes later
  const LaunchResult other = launch_and_wait(machine("1"));
  const LaunchResult main = first.wait();
  EXPECT_EQ(main.code, 0) << main.err;
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(main.out, HasSubstr("sum 6"));
}

TEST(LaunchStart, RanksAreBoundToCoresOfTheirOwn) {
  const std::vector<int> cpus = own_cpus();
  if (cpus.size() < 2) GTEST_SKIP() << "one CPU";
  LaunchSetting setting;
  setting.cpus = {cpus[0], cpus[1]};
  const std::string bound = launch_and_wait(program(2, {"affinity"}), setting).out;
  EXPECT_THAT(bound, HasSubstr(core::str("cpus ", cpus[0], " threads 1\n")));
  EXPECT_THAT(bound, HasSubstr(core::str("cpus ", cpus[1], " threads 1\n")));
  const std::string free =
      launch_and_wait(program(2, {"affinity"}, {"--no-bind-cores"}), setting).out;
  EXPECT_THAT(free, HasSubstr(core::str("[1] cpus ", cpus[0], " ", cpus[1], " threads 1\n")));
  setting.cpus = {cpus[1]};  // and never outside the mask that the launcher has
  EXPECT_THAT(launch_and_wait(program(1, {"affinity"}), setting).out,
              HasSubstr(core::str("cpus ", cpus[1], " threads 1\n")));
}

TEST(LaunchStart, MoreRanksThanCoresAreNotBound) {
  const LaunchResult result = launch_and_wait(program(16, {"affinity"}));
  EXPECT_EQ(result.code, 0);
  std::string all = "cpus";
  for (const int cpu : own_cpus()) all += core::str(" ", cpu);
  if (own_cpus().size() >= 16) GTEST_SKIP() << "enough CPUs";
  for (int rank = 0; rank < 16; ++rank)
    EXPECT_THAT(result.out, HasSubstr(core::str("[", rank, "] ", all, " threads 1\n")));
}

TEST(LaunchStart, TheUsersThreadsAreKept) {
  LaunchSetting setting;
  setting.environment = {"OMP_NUM_THREADS=7"};
  EXPECT_THAT(launch_and_wait(program(2, {"affinity"}), setting).out, HasSubstr("threads 7\n"));
  EXPECT_THAT(launch_and_wait(program(2, {"affinity"}, {"--num-threads", "3"}), setting).out,
              HasSubstr("threads 3\n"));
}

TEST(LaunchStart, OnlyRankZeroReadsTheInput) {
  LaunchSetting setting;
  setting.input = "one\ntwo\n";
  const LaunchResult result = launch_and_wait(script(2, "echo $(cat) end"), setting);
  EXPECT_THAT(result.out, HasSubstr("[0] one two end\n"));
  EXPECT_THAT(result.out, HasSubstr("[1] end\n"));
}

TEST(LaunchStart, ADryRunStartsNothing) {
  const Folder folder;
  const LaunchResult result = launch_and_wait(
      {"--cpu", "-n", "2", "--dry-run", "--log-dir", folder / "logs", "touch", folder / "a file"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("RANK=1 "));
  EXPECT_THAT(result.out, HasSubstr("/touch '" + (folder / "a file") + "'\n"));
  EXPECT_NE(::access((folder / "a file").c_str(), F_OK), 0);
  EXPECT_NE(::access((folder / "logs").c_str(), F_OK), 0);
}

TEST(LaunchStart, WhatCannotBeRunSaysWhy) {
  const Folder folder;
  const LaunchResult absent = launch_and_wait({"--cpu", "./no-such-program"});
  EXPECT_EQ(absent.code, 127);
  EXPECT_THAT(absent.err, HasSubstr("drivetrain: ./no-such-program does not exist"));
  const LaunchResult folder_itself = launch_and_wait({"--cpu", folder.path()});
  EXPECT_EQ(folder_itself.code, 126);
  EXPECT_THAT(folder_itself.err, HasSubstr("is a directory"));
  const LaunchResult unfit = launch_and_wait(
      script(1, "printf 'neither\\0program' > " + (folder / "x") + "; chmod +x " + (folder / "x")));
  EXPECT_EQ(unfit.code, 0);
  const LaunchResult run =
      launch_and_wait({"--cpu", "-n", "2", "--max-restarts", "3", folder / "x"});
  EXPECT_EQ(run.code, 126);
  EXPECT_THAT(run.err, HasSubstr("could not be run: " + (folder / "x") + ": Exec format error"));
  EXPECT_THAT(run.err, Not(HasSubstr("restarting")));
}

TEST(LaunchStart, WrongOptionsAreExplained) {
  const LaunchResult result = launch_and_wait({"--num-proceses", "2", "true"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("did you mean --num-processes?"));
  EXPECT_EQ(launch_and_wait({"-n", "2"}).code, 2);
  EXPECT_EQ(launch_and_wait({"--help"}).code, 0);
}

}  // namespace
}  // namespace drivetrain::cli
