// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "cli/launch/command.h"

namespace drivetrain::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const Machine kFourCores = {{{0}, {1}, {2}, {3}}, 0};

LaunchOptions options_for(int processes) {
  LaunchOptions options;
  options.num_processes = processes;
  options.command = {"train", "--lr", "1 2"};
  return options;
}

LaunchPlan plan_for(const LaunchOptions& options, const std::vector<std::string>& env = {}) {
  return make_plan(options, "/bin/train", kFourCores, "/tmp/scratch", env);
}

std::map<std::string, std::string> table(const RankPlan& rank) {
  return {rank.variables.begin(), rank.variables.end()};
}

TEST(Plan, RanksOfTheSecondMachineGoOnFromTheFirst) {
  LaunchOptions options = options_for(6);
  options.num_machines = 2;
  options.machine_rank = 1;
  options.main_process_ip = "10.0.0.1";
  options.main_process_port = 29500;
  const LaunchPlan plan = plan_for(options);
  ASSERT_EQ(plan.ranks.size(), 3U);
  auto rank = table(plan.ranks[2]);
  EXPECT_EQ(rank["RANK"], "5");
  EXPECT_EQ(rank["LOCAL_RANK"], "2");
  EXPECT_EQ(rank["WORLD_SIZE"], "6");
  EXPECT_EQ(rank["LOCAL_WORLD_SIZE"], "3");
  EXPECT_EQ(rank["GROUP_RANK"], "1");
  EXPECT_EQ(rank["GROUP_WORLD_SIZE"], "2");
  EXPECT_EQ(rank["ROLE_RANK"], "5");
  EXPECT_EQ(rank["ROLE_WORLD_SIZE"], "6");
  EXPECT_EQ(rank["MASTER_ADDR"], "10.0.0.1");
  EXPECT_EQ(rank["TORCHELASTIC_MAX_RESTARTS"], "0");
  EXPECT_EQ(rank["TORCHELASTIC_RUN_ID"], "10.0.0.1:29500");  // the same on every machine
  EXPECT_EQ(rank["DRIVETRAIN_ERROR_FILE"], "/tmp/scratch/rank-5.error.json");
  EXPECT_EQ(rank["OMP_NUM_THREADS"], "1");
  EXPECT_FALSE(rank.contains("DRIVETRAIN_CPU"));
  EXPECT_EQ(plan.ranks[2].share.cpus.size(), 0U);  // not bound unless asked for
}

TEST(Plan, RunIdsAreFreshOnOneMachine) {
  EXPECT_NE(plan_for(options_for(1)).run_id, plan_for(options_for(1)).run_id);
  LaunchOptions named = options_for(1);
  named.run_id = "abc";
  EXPECT_EQ(plan_for(named).run_id, "abc");
}

TEST(Plan, VariablesOfAnOuterLauncherAreReplaced) {
  const std::vector<std::string> env = {"HOME=/root",
                                        "RANK=7",
                                        "TORCHELASTIC_USE_AGENT_STORE=True",
                                        "OMPI_COMM_WORLD_RANK=3",
                                        "PMI_SIZE=9",
                                        "SLURM_PROCID=1",
                                        "SLURM_JOB_ID=12",
                                        "DRIVETRAIN_STORE_FD=9",
                                        "DRIVETRAIN_LOG_LEVEL=info",
                                        "RANKING=kept",
                                        "MASTER_PORT=1"};
  EXPECT_THAT(
      plan_for(options_for(2), env).inherited,
      ElementsAre("HOME=/root", "SLURM_JOB_ID=12", "DRIVETRAIN_LOG_LEVEL=info", "RANKING=kept"));
}

TEST(Plan, ThreadsAreTheUsersUnlessToldOtherwise) {
  LaunchOptions options = options_for(2);
  EXPECT_EQ(table(plan_for(options).ranks[0])["OMP_NUM_THREADS"], "2");
  const LaunchPlan kept = plan_for(options, {"OMP_NUM_THREADS=7"});
  EXPECT_THAT(kept.inherited, ElementsAre("OMP_NUM_THREADS=7"));
  EXPECT_FALSE(table(kept.ranks[0]).contains("OMP_NUM_THREADS"));
  options.num_threads = 3;
  const LaunchPlan given = plan_for(options, {"OMP_NUM_THREADS=7"});
  EXPECT_TRUE(given.inherited.empty());
  EXPECT_EQ(table(given.ranks[1])["OMP_NUM_THREADS"], "3");
}

TEST(Plan, SettingsReachTheRanksOverThoseInherited) {
  const std::vector<std::string> env = {"DRIVETRAIN_TIMEOUT=5", "DRIVETRAIN_DEBUG=0"};
  EXPECT_EQ(plan_for(options_for(1), env).inherited, env);
  LaunchOptions options = options_for(1);
  options.cpu = options.debug = true;
  options.timeout = "2.5";
  const LaunchPlan plan = plan_for(options, env);
  EXPECT_TRUE(plan.inherited.empty());
  auto rank = table(plan.ranks[0]);
  EXPECT_EQ(rank["DRIVETRAIN_CPU"], "1");
  EXPECT_EQ(rank["DRIVETRAIN_DEBUG"], "1");
  EXPECT_EQ(rank["DRIVETRAIN_TIMEOUT"], "2.5");
}

TEST(Plan, EachRankSeesItsOwnDeviceWhereTheyAreSplit) {
  const std::vector<std::string> env = {"SOME_VISIBLE_DEVICES=7,GPU-a,MIG-b/1/0"};
  LaunchOptions options = options_for(3);
  EXPECT_EQ(plan_for(options, env).inherited, env);
  EXPECT_FALSE(table(plan_for(options, env).ranks[0]).contains("SOME_VISIBLE_DEVICES"));
  options.visible_devices = "SOME_VISIBLE_DEVICES";
  options.device_of_rank = {"7", "GPU-a", "MIG-b/1/0"};
  const LaunchPlan plan = plan_for(options, env);
  EXPECT_TRUE(plan.inherited.empty());
  EXPECT_EQ(table(plan.ranks[0])["SOME_VISIBLE_DEVICES"], "7");
  EXPECT_EQ(table(plan.ranks[1])["SOME_VISIBLE_DEVICES"], "GPU-a");
  EXPECT_EQ(table(plan.ranks[2])["SOME_VISIBLE_DEVICES"], "MIG-b/1/0");
  EXPECT_EQ(table(plan.ranks[2])["LOCAL_RANK"], "2");
  std::ostringstream out;
  print_plan(plan, out);
  EXPECT_THAT(out.str(), HasSubstr(" SOME_VISIBLE_DEVICES=GPU-a "));
}

TEST(Plan, ErrorFilesGoToTheLogsByAbsolutePath) {
  LaunchOptions options = options_for(1);
  options.log_dir = "logs";
  const std::string file = plan_for(options).ranks[0].error_file;
  EXPECT_TRUE(file.starts_with("/"));
  EXPECT_TRUE(file.ends_with("/logs/rank-0.error.json"));
}

TEST(Plan, LinesAreMarkedWhereThereAreSeveralRanks) {
  EXPECT_FALSE(plan_for(options_for(1)).prefix);
  EXPECT_TRUE(plan_for(options_for(2)).prefix);
  LaunchOptions options = options_for(2);
  options.prefix = false;
  EXPECT_FALSE(plan_for(options).prefix);
}

TEST(Plan, OnlyOneRankIsGivenTheSocket) {
  EXPECT_EQ(start_variables(80, 2, -1),
            (Variables{{"MASTER_PORT", "80"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}));
  EXPECT_EQ(start_variables(80, 0, 5).back(),
            (std::pair<std::string, std::string>{"DRIVETRAIN_STORE_FD", "5"}));
}

TEST(Plan, IsPrintedAsAShellWouldRunIt) {
  std::ostringstream out;
  LaunchOptions options = options_for(2);
  options.bind_cores = true;
  print_plan(plan_for(options), out);
  EXPECT_THAT(out.str(), HasSubstr("# rank 1, bound to CPUs 2-3\n"));
  EXPECT_THAT(out.str(), HasSubstr(" RANK=1 "));
  EXPECT_THAT(out.str(), HasSubstr(" /bin/train --lr '1 2'\n"));
  EXPECT_THAT(out.str(), HasSubstr("a free port is taken at the start"));
}

TEST(Command, QuotesWhatAShellWouldChange) {
  EXPECT_EQ(shell_quoted("a-b_c=1,2/x.y"), "a-b_c=1,2/x.y");
  EXPECT_EQ(shell_quoted(""), "''");
  EXPECT_EQ(shell_quoted("it's $5"), "'it'\\''s $5'");
}

TEST(Command, ProgramsAreFoundAsAShellDoes) {
  EXPECT_EQ(find_program("/bin/sh").path, "/bin/sh");
  EXPECT_TRUE(find_program("sh").path.ends_with("/sh"));
  EXPECT_EQ(find_program("/nowhere/x").exit_code, 127);
  EXPECT_EQ(find_program("no-such-program-here").exit_code, 127);
  EXPECT_THAT(find_program("no-such-program-here").problem, HasSubstr("was not found in PATH"));
  EXPECT_EQ(find_program("/tmp").exit_code, 126);
  EXPECT_THAT(find_program("/tmp").problem, HasSubstr("is a directory"));
  EXPECT_EQ(find_program("/etc/passwd").exit_code, 126);
  EXPECT_THAT(find_program("/etc/passwd").problem, HasSubstr("try chmod +x /etc/passwd"));
}

}  // namespace
}  // namespace drivetrain::cli
