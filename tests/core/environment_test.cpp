// SPDX-License-Identifier: Apache-2.0
#include "core/environment.h"

#include <drivetrain/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "scoped_env.h"

namespace drivetrain::core {
namespace {

TEST(Environment, EmptyCountsAsUnset) {
  ScopedEnv empty("DRIVETRAIN_TEST_VALUE", "");
  EXPECT_FALSE(environment("DRIVETRAIN_TEST_VALUE"));
  ScopedEnv set("DRIVETRAIN_TEST_VALUE", "x");
  EXPECT_EQ(environment("DRIVETRAIN_TEST_VALUE"), "x");
}

TEST(Environment, IntegersAreWholeAndInRange) {
  for (const char* bad : {"1.5", "four", "4x", "-1", "11", "99999999999999999999"}) {
    ScopedEnv set("DRIVETRAIN_TEST_VALUE", bad);
    EXPECT_ERROR(environment_int("DRIVETRAIN_TEST_VALUE", 0, 10), ConfigError,
                 "DRIVETRAIN_TEST_VALUE is \"" + std::string(bad) +
                     "\"; allowed: a whole number from 0 to 10");
  }
  ScopedEnv set("DRIVETRAIN_TEST_VALUE", "10");
  EXPECT_EQ(environment_int("DRIVETRAIN_TEST_VALUE", 0, 10), 10);
}

TEST(Environment, NumbersAreFiniteAndInRange) {
  EXPECT_DOUBLE_EQ(parse_double("x", "2.5", 0, 10), 2.5);
  for (const char* bad : {"", "nan", "inf", "2.5s", "-1"})
    EXPECT_ERROR(parse_double("x", bad, 0, 10), ConfigError, "allowed: a number from 0 to 10");
}

TEST(Environment, BooleansAreStrict) {
  for (const char* yes : {"y", "YES", "t", "True", "on", "1"}) EXPECT_TRUE(parse_bool("x", yes));
  for (const char* no : {"n", "No", "f", "FALSE", "off", "0"}) EXPECT_FALSE(parse_bool("x", no));
  EXPECT_ERROR(parse_bool("x", "maybe"), ConfigError, "x is \"maybe\"; allowed: yes, true, on, 1");
}

}  // namespace
}  // namespace drivetrain::core
