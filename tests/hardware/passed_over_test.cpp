// SPDX-License-Identifier: Apache-2.0
// Hardware that is there and not used is spoken of once; a machine without any is not.
#include "hardware/passed_over.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <vector>

#include <unistd.h>

#include "scoped_env.h"

namespace drivetrain {
namespace {

// A backend whose driver is broken.
class Broken : public BaseAccelerator {
 public:
  using BaseAccelerator::BaseAccelerator;
  std::string why_unavailable() const override { throw std::runtime_error("error 999"); }
  int device_count() const override { return 0; }
};

AcceleratorFacts facts_of(const std::string& name, const std::string& driver) {
  AcceleratorFacts facts;
  facts.name = name;
  facts.communication_backend = "gloo";
  facts.visible_devices = "BROKEN_VISIBLE_DEVICES";
  facts.driver_path = driver;
  facts.priority = 1;
  return facts;
}

// The warning is said once in a process: each case below is one of its own.
template <class Deed>
void in_a_process(const Deed& deed, const std::string& pattern) {
  EXPECT_EXIT(
      {
        deed();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), pattern);
}

class PassedOverDeathTest : public ::testing::Test {
 protected:
  PassedOverDeathTest() { std::ofstream(driver) << "loaded"; }
  ~PassedOverDeathTest() override { std::filesystem::remove(driver); }

  std::string driver = ::testing::TempDir() + "broken_driver." + std::to_string(::getpid());
  ScopedEnv no_choice{"DRIVETRAIN_ACCELERATOR", nullptr};
  ScopedEnv no_list{"BROKEN_VISIBLE_DEVICES", nullptr};
  ScopedEnv no_level{"DRIVETRAIN_LOG_LEVEL", nullptr};
};

TEST_F(PassedOverDeathTest, IsWarnedOfWithTheReason) {
  in_a_process(
      [&] { hardware::warn_of_passed_over({{facts_of("x", driver), "no such call"}}, "cpu"); },
      "drivetrain warning: x is not used although there is .*broken_driver.*: no such "
      "call; going on with cpu; DRIVETRAIN_ACCELERATOR=cpu says that it is meant so; see "
      "drivetrain doctor");
}

TEST_F(PassedOverDeathTest, IsWarnedOfOnce) {
  in_a_process(
      [&] {
        for (int i = 0; i < 3; ++i)
          hardware::warn_of_passed_over({{facts_of("x", driver), "reason"}}, "cpu");
      },
      "^[^\n]*x is not used[^\n]*\n$");
}

TEST_F(PassedOverDeathTest, IsSilentWhereNothingIsThere) {
  in_a_process(
      [&] {
        hardware::warn_of_passed_over({{facts_of("x", "/nowhere/driver"), "reason"}}, "cpu");
        hardware::warn_of_passed_over({{facts_of("x", ""), "reason"}}, "cpu");
        hardware::warn_of_passed_over({}, "cpu");
      },
      "^$");
}

TEST_F(PassedOverDeathTest, IsSilentWhereTheUserHidesTheDevices) {
  const ScopedEnv hidden("BROKEN_VISIBLE_DEVICES", "-1");
  in_a_process([&] { hardware::warn_of_passed_over({{facts_of("x", driver), "reason"}}, "cpu"); },
               "^$");
}

TEST_F(PassedOverDeathTest, IsWarnedOfWhereTheListIsWrong) {
  const ScopedEnv wrong("BROKEN_VISIBLE_DEVICES", "gpu0");
  in_a_process([&] { hardware::warn_of_passed_over({{facts_of("x", driver), "reason"}}, "cpu"); },
               "x is not used although");
}

// Through the registry: a backend that throws, though it must not, ends up in the report.
TEST_F(PassedOverDeathTest, ByDetectionIsWarnedOf) {
  in_a_process(
      [&] {
        register_accelerator(facts_of("broken", driver), [](const AcceleratorFacts& facts) {
          return std::make_shared<Broken>(facts);
        });
        clear_accelerator();
        const std::string chosen = get_accelerator()->name();
        auto_set_accelerator();  // again: silent
        for (const ProbeResult& result : probe_report())
          if (result.name == "broken" && result.reason != "asking it failed: error 999")
            std::exit(1);
        if (chosen == "broken") std::exit(2);
      },
      "^drivetrain warning: broken is not used although there is [^\n]*: asking it failed: error "
      "999; going on with [^\n]*\n$");
}

TEST_F(PassedOverDeathTest, ByTheUsersChoiceIsSilent) {
  const ScopedEnv choice("DRIVETRAIN_ACCELERATOR", "cpu");
  in_a_process(
      [&] {
        register_accelerator(facts_of("broken", driver), [](const AcceleratorFacts& facts) {
          return std::make_shared<Broken>(facts);
        });
        clear_accelerator();
        if (get_accelerator()->name() != "cpu") std::exit(1);
      },
      "^$");
}

}  // namespace
}  // namespace drivetrain
