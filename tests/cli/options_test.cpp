// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/options.h"

#include <drivetrain/error.h>
#include <gtest/gtest.h>

#include <sstream>

#include "expect_error.h"
#include "scoped_env.h"

namespace drivetrain::cli {
namespace {

using Words = std::vector<std::string>;

LaunchOptions parse(const Words& words) {
  std::ostringstream help;
  return parse_launch_options(words, help).value();
}

class Options : public ::testing::Test {
  ScopedEnv no_devices_{"CUDA_VISIBLE_DEVICES", "-1"};
  ScopedEnv no_cpu_{"DRIVETRAIN_CPU", nullptr};
};

TEST_F(Options, DefaultsAreOneRankOnThisMachine) {
  const LaunchOptions options = parse({"./train"});
  EXPECT_EQ(options.num_processes, 1);
  EXPECT_EQ(options.local_world_size(), 1);
  EXPECT_EQ(options.main_process_ip, "127.0.0.1");
  EXPECT_EQ(options.main_process_port, 0);
  EXPECT_EQ(options.monitor_interval.count(), 100);
  EXPECT_EQ(options.grace_period.count(), 500);
  EXPECT_TRUE(options.bind_cores);
  EXPECT_EQ(options.error_file, "");
  EXPECT_EQ(options.command, Words{"./train"});
}

TEST_F(Options, EverythingAfterTheProgramBelongsToIt) {
  const LaunchOptions options =
      parse({"--cpu", "-n", "2", "./train", "--num-processes", "9", "--batch_size=4", "--", "-x"});
  EXPECT_EQ(options.num_processes, 2);
  EXPECT_EQ(options.command,
            (Words{"./train", "--num-processes", "9", "--batch_size=4", "--", "-x"}));
  EXPECT_EQ(parse({"-n", "2", "--", "-odd-name", "a_b"}).command, (Words{"-odd-name", "a_b"}));
}

TEST_F(Options, EveryWayOfWritingAnOptionIsTheSame) {
  for (const Words& words :
       {Words{"--num-processes", "3"}, Words{"--num-processes=3"}, Words{"--num_processes", "3"},
        Words{"--num_processes=3"}, Words{"-n", "3"}, Words{"-n3"}, Words{"-n", "8", "-n", "3"}}) {
    Words all = words;
    all.push_back("./train");
    EXPECT_EQ(parse(all).num_processes, 3) << words.front();
  }
}

TEST_F(Options, ValuesKeepTheirUnderscores) {
  EXPECT_EQ(parse({"--log_dir=my_logs", "p"}).log_dir, "my_logs");
  EXPECT_EQ(parse({"--log_dir", "my_logs", "p"}).error_file, "my_logs/error.json");
}

TEST_F(Options, EachIsRead) {
  const LaunchOptions options = parse({"-n8",
                                       "--num-machines",
                                       "2",
                                       "--machine-rank",
                                       "1",
                                       "--main-process-ip",
                                       "10.0.0.1",
                                       "--main-process-port",
                                       "29500",
                                       "--debug",
                                       "--dry-run",
                                       "--no-bind-cores",
                                       "--num-threads",
                                       "5",
                                       "--timeout",
                                       "2.5",
                                       "--run-id",
                                       "abc",
                                       "--monitor-interval",
                                       "0.25",
                                       "--grace-period",
                                       "3",
                                       "--error-file",
                                       "e.json",
                                       "--show",
                                       "main",
                                       "--no-prefix",
                                       "p"});
  EXPECT_EQ(options.local_world_size(), 4);
  EXPECT_EQ(options.machine_rank, 1);
  EXPECT_EQ(options.main_process_ip, "10.0.0.1");
  EXPECT_EQ(options.main_process_port, 29500);
  EXPECT_TRUE(options.debug);
  EXPECT_TRUE(options.dry_run);
  EXPECT_FALSE(options.cpu);
  EXPECT_FALSE(options.bind_cores);
  EXPECT_EQ(options.num_threads, 5);
  EXPECT_EQ(options.timeout, "2.5");
  EXPECT_EQ(options.run_id, "abc");
  EXPECT_EQ(options.monitor_interval.count(), 250);
  EXPECT_EQ(options.grace_period.count(), 3000);
  EXPECT_EQ(options.error_file, "e.json");
  EXPECT_EQ(options.show, Show::main);
  EXPECT_EQ(options.prefix, false);
  EXPECT_EQ(parse({"--max-restarts", "4", "p"}).max_restarts, 4);
  EXPECT_EQ(parse({"-q", "p"}).show, Show::none);
  EXPECT_EQ(parse({"--prefix", "p"}).prefix, true);
}

TEST_F(Options, UnknownNamesSuggestTheNearest) {
  EXPECT_ERROR(parse({"--num-proceses", "2", "p"}), ConfigError,
               "unknown option --num-proceses before PROGRAM; did you mean --num-processes?");
  EXPECT_ERROR(parse({"--max_restart=2", "p"}), ConfigError, "did you mean --max-restarts?");
  EXPECT_ERROR(parse({"--zzzzzzzzz", "p"}), ConfigError,
               "unknown option --zzzzzzzzz before PROGRAM; allowed: the options of");
}

TEST_F(Options, MissingAndNeedlessValuesAreRefused) {
  EXPECT_ERROR(parse({"--num-processes"}), ConfigError,
               "option --num-processes has no value; allowed: --num-processes N");
  EXPECT_ERROR(parse({"--log-dir=", "p"}), ConfigError, "option --log-dir has no value");
  EXPECT_ERROR(parse({"--cpu=yes", "p"}), ConfigError,
               "option --cpu has the value \"yes\"; allowed: none; leave it out");
  EXPECT_ERROR(parse({"--cpu"}), ConfigError, "PROGRAM is missing");
  EXPECT_ERROR(parse({""}), ConfigError, "PROGRAM is missing");
}

TEST_F(Options, ValuesOutOfRangeAreRefused) {
  EXPECT_ERROR(parse({"-n", "0", "p"}), ConfigError, "--num-processes is \"0\"; allowed: a whole");
  EXPECT_ERROR(parse({"-n", "two", "p"}), ConfigError, "--num-processes is \"two\"");
  EXPECT_ERROR(parse({"--main-process-port", "70000", "p"}), ConfigError, "0 to 65535");
  EXPECT_ERROR(parse({"--num-threads", "0", "p"}), ConfigError, "--num-threads is \"0\"");
  EXPECT_ERROR(parse({"--timeout", "soon", "p"}), ConfigError, "--timeout is \"soon\"");
  EXPECT_ERROR(parse({"--monitor-interval", "-1", "p"}), ConfigError, "--monitor-interval is");
  EXPECT_ERROR(parse({"--grace-period", "nan", "p"}), ConfigError, "--grace-period is \"nan\"");
  EXPECT_ERROR(parse({"--show", "some", "p"}), ConfigError, "allowed: all, main, none");
  EXPECT_ERROR(parse({"-q", "--show", "all", "p"}), ConfigError, "--quiet contradicts --show all");
}

TEST_F(Options, MachinesThatDoNotFitAreRefused) {
  const auto two = [](Words more) {
    Words words = {"--num-machines", "2", "--main-process-ip", "h", "--main-process-port", "1"};
    words.insert(words.end(), more.begin(), more.end());
    words.push_back("p");
    return parse(words);
  };
  EXPECT_EQ(two({"-n", "4"}).local_world_size(), 2);
  EXPECT_EQ(two({}).num_processes, 2);
  EXPECT_ERROR(two({"-n", "5"}), ConfigError,
               "--num-processes is 5 for 2 machines; allowed: a multiple of 2");
  EXPECT_ERROR(two({"-n", "1"}), ConfigError, "allowed: a multiple of 2");
  EXPECT_ERROR(two({"--machine-rank", "2"}), ConfigError, "--machine-rank is 2 of 2 machines");
  EXPECT_ERROR(two({"--max-restarts", "1"}), ConfigError, "--max-restarts is 1 for 2 machines");
  EXPECT_ERROR(two({"--main-process-port", "0"}), ConfigError,
               "--main-process-port is 0 for 2 machines; allowed: 1 to 65535");
  EXPECT_ERROR(parse({"--num-machines", "2", "p"}), ConfigError, "--main-process-ip is missing");
  EXPECT_ERROR(parse({"--machine-rank", "1", "p"}), ConfigError, "allowed: 0 to 0");
}

TEST_F(Options, DevicesGiveTheDefaultNumberOfRanks) {
  ScopedEnv three("CUDA_VISIBLE_DEVICES", "0,1,5");
  EXPECT_EQ(parse({"p"}).num_processes, 3);
  EXPECT_FALSE(parse({"p"}).bind_cores);
  EXPECT_EQ(parse({"--cpu", "p"}).num_processes, 1);
  EXPECT_TRUE(parse({"--cpu", "p"}).bind_cores);
  ScopedEnv cpu("DRIVETRAIN_CPU", "1");
  EXPECT_EQ(parse({"p"}).num_processes, 1);
}

TEST_F(Options, DevicesAreReadInEveryForm) {
  {
    ScopedEnv two("CUDA_VISIBLE_DEVICES", "GPU-8932f937,MIG-GPU-8932f937/1/0");
    EXPECT_EQ(parse({"p"}).num_processes, 2);
  }
  ScopedEnv wrong("CUDA_VISIBLE_DEVICES", "gpu0");
  EXPECT_ERROR(parse({"p"}), ConfigError,
               "CUDA_VISIBLE_DEVICES is \"gpu0\": \"gpu0\" names no device");
  EXPECT_EQ(parse({"--cpu", "p"}).num_processes, 1);  // the list is not looked at
}

TEST_F(Options, DevicesAreSplitOnRequest) {
  ScopedEnv three("CUDA_VISIBLE_DEVICES", "4, GPU-8932f937,MIG-GPU-8932f937/1/0");
  EXPECT_TRUE(parse({"p"}).device_of_rank.empty());
  const LaunchOptions all = parse({"--split-devices", "p"});
  EXPECT_EQ(all.num_processes, 3);
  EXPECT_EQ(all.visible_devices, "CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(all.device_of_rank, (Words{"4", "GPU-8932f937", "MIG-GPU-8932f937/1/0"}));
  EXPECT_EQ(parse({"--split_devices", "-n", "2", "p"}).device_of_rank,
            (Words{"4", "GPU-8932f937"}));
  const LaunchOptions second =
      parse({"--split-devices", "--num-machines", "2", "-n", "4", "--machine-rank", "1",
             "--main-process-ip", "h", "--main-process-port", "1", "p"});
  EXPECT_EQ(second.device_of_rank, (Words{"4", "GPU-8932f937"}));  // those of this machine
}

TEST_F(Options, DevicesThatDoNotSufficeAreNotSplit) {
  EXPECT_ERROR(parse({"--split-devices", "--cpu", "p"}), ConfigError,
               "--split-devices contradicts --cpu");
  EXPECT_ERROR(
      parse({"--split-devices", "p"}), ConfigError,
      "--split-devices has 0 devices for 1 ranks of this machine; allowed: a device a rank");
  ScopedEnv two("CUDA_VISIBLE_DEVICES", "0,1");
  EXPECT_ERROR(parse({"--split-devices", "-n", "3", "p"}), ConfigError,
               "--split-devices has 2 devices (CUDA_VISIBLE_DEVICES: 0,1) for 3 ranks");
}

TEST_F(Options, HelpNamesEveryOption) {
  std::ostringstream help;
  EXPECT_FALSE(parse_launch_options({"--help"}, help));
  for (const char* name : {"--num-processes",
                           "--num-machines",
                           "--machine-rank",
                           "--main-process-ip",
                           "--run-id",
                           "--main-process-port",
                           "--cpu",
                           "--max-restarts",
                           "--monitor-interval",
                           "--bind-cores",
                           "--no-bind-cores",
                           "--num-threads",
                           "--log-dir",
                           "--dry-run",
                           "--debug",
                           "--timeout",
                           "--grace-period",
                           "--error-file",
                           "--show",
                           "--quiet",
                           "--prefix",
                           "--split-devices",
                           "DRIVETRAIN_STORE_FD"})
    EXPECT_THAT(help.str(), ::testing::HasSubstr(name));
}

}  // namespace
}  // namespace drivetrain::cli
