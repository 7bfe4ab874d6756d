// SPDX-License-Identifier: Apache-2.0
// EXPECT_ERROR(statement, Type, text): the statement throws Type, and its message holds the text.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <string>

#define EXPECT_ERROR(statement, Type, text)                                      \
  do {                                                                           \
    bool drivetrain_threw = false;                                               \
    try {                                                                        \
      (void)(statement);                                                         \
    } catch (const Type& error) {                                                \
      drivetrain_threw = true;                                                   \
      EXPECT_THAT(std::string(error.what()), ::testing::HasSubstr(text));        \
    } catch (const std::exception& error) {                                      \
      drivetrain_threw = true;                                                   \
      ADD_FAILURE() << "threw something other than " #Type ": " << error.what(); \
    }                                                                            \
    EXPECT_TRUE(drivetrain_threw) << #statement " did not throw " #Type;         \
  } while (false)
