// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/config.h>
#include <drivetrain/error.h>

#include "clean_env.h"
#include "expect_error.h"

namespace drivetrain {
namespace {

using namespace std::chrono_literals;

using Variables = std::map<std::string, std::string>;

TEST(Config, HasDefaultsWithoutAnyVariable) {
  CleanEnv env;
  const Config config = Config::from_environment();
  EXPECT_EQ(config.accelerator, "auto");
  EXPECT_FALSE(config.cpu);
  EXPECT_FALSE(config.debug);
  EXPECT_EQ(config.timeout, 600s);
  EXPECT_EQ(config, Config());
}

TEST(Config, ReadsEverySetting) {
  CleanEnv env({{"DRIVETRAIN_ACCELERATOR", " CPU "},
                {"DRIVETRAIN_CPU", "yes"},
                {"DRIVETRAIN_TIMEOUT", "1.5"},
                {"DRIVETRAIN_DEBUG", "on"}});
  const Config config = Config::from_environment();
  EXPECT_EQ(config.accelerator, "cpu");
  EXPECT_TRUE(config.cpu);
  EXPECT_TRUE(config.debug);
  EXPECT_EQ(config.timeout, 1500ms);
}

TEST(Config, TakesAcceleratesNames) {
  CleanEnv env({{"ACCELERATE_USE_CPU", "True"}, {"ACCELERATE_DEBUG_MODE", "1"}});
  EXPECT_TRUE(Config::from_environment().cpu);
  EXPECT_TRUE(Config::from_environment().debug);
}

TEST(Config, TwoNamesOfOneSettingMustAgree) {
  CleanEnv same({{"DRIVETRAIN_CPU", "1"}, {"ACCELERATE_USE_CPU", "true"}});
  EXPECT_TRUE(Config::from_environment().cpu);
  ScopedEnv differs("ACCELERATE_USE_CPU", "false");
  EXPECT_ERROR(Config::from_environment(), ConfigError,
               "environment variable DRIVETRAIN_CPU is \"1\", but ACCELERATE_USE_CPU, its other "
               "name, is \"false\"; allowed: the same value; unset one");
}

TEST(Config, AWrongValueNamesTheVariable) {
  for (const auto& [name, value, text] :
       {std::tuple("DRIVETRAIN_CPU", "maybe", "DRIVETRAIN_CPU is \"maybe\"; allowed: yes"),
        std::tuple("ACCELERATE_DEBUG_MODE", "2", "ACCELERATE_DEBUG_MODE is \"2\""),
        std::tuple("DRIVETRAIN_TIMEOUT", "0", "DRIVETRAIN_TIMEOUT is \"0\"; allowed: a number"),
        std::tuple("DRIVETRAIN_TIMEOUT", "10s", "DRIVETRAIN_TIMEOUT is \"10s\""),
        std::tuple("DRIVETRAIN_LOG_LEVEL", "loud",
                   "DRIVETRAIN_LOG_LEVEL is \"loud\"; allowed: debug, info, warning, error, off"),
        std::tuple("DRIVETRAIN_CPU_CAPABILITY", "sse2",
                   "DRIVETRAIN_CPU_CAPABILITY is \"sse2\"; allowed: scalar, avx2, avx512"),
        std::tuple("DRIVETRAIN_SIM_DEVICES", "65", "DRIVETRAIN_SIM_DEVICES is \"65\"; allowed: a"),
        std::tuple("DRIVETRAIN_SIM_MEMORY", "much", "DRIVETRAIN_SIM_MEMORY is \"much\""),
        std::tuple("DRIVETRAIN_SIM_BANDWIDTH", "-1", "DRIVETRAIN_SIM_BANDWIDTH is \"-1\""),
        std::tuple("DRIVETRAIN_SIM_PROTECT", "maybe", "DRIVETRAIN_SIM_PROTECT is \"maybe\"")}) {
    CleanEnv env(Variables{{name, value}});
    EXPECT_ERROR(Config::from_environment(), ConfigError, text);
  }
}

TEST(Config, AnUnknownNameIsRefusedWithTheNearest) {
  CleanEnv env(Variables{{"DRIVETRAIN_TIMEOT", "5"}});
  EXPECT_ERROR(Config::from_environment(), ConfigError,
               "DRIVETRAIN_TIMEOT is unknown, did you mean DRIVETRAIN_TIMEOUT?");
  CleanEnv far(Variables{{"DRIVETRAIN_COLOUR_OF_THE_SHED", "red"}});
  EXPECT_ERROR(Config::from_environment(), ConfigError,
               "DRIVETRAIN_COLOUR_OF_THE_SHED is unknown; allowed: ");
}

TEST(Config, KnowsTheNamesThatAreReadElsewhere) {
  CleanEnv env({{"DRIVETRAIN_STORE_FD", "5"},
                {"DRIVETRAIN_ERROR_FILE", "/tmp/error.json"},
                {"DRIVETRAIN_LOG_LEVEL", "info"}});
  EXPECT_EQ(Config::from_environment(), Config());
}

TEST(Config, TheCpuExcludesAnotherAccelerator) {
  CleanEnv env({{"DRIVETRAIN_CPU", "1"}, {"DRIVETRAIN_ACCELERATOR", "cuda"}});
  EXPECT_ERROR(Config::from_environment(), ConfigError,
               "DRIVETRAIN_CPU asks for the CPU, but DRIVETRAIN_ACCELERATOR is \"cuda\"");
}

}  // namespace
}  // namespace drivetrain
