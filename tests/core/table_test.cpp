// SPDX-License-Identifier: Apache-2.0
#include "core/table.h"

#include <gtest/gtest.h>

namespace drivetrain::core {
namespace {

TEST(Table, AlignsTheFirstColumnToTheLeftAndTheOthersToTheRight) {
  EXPECT_EQ(table({{"", "now", "peak"}, {"allocated", "1 B", "1.5 GiB"}, {"x", "23", ""}}),
            "           now     peak\n"
            "allocated  1 B  1.5 GiB\n"
            "x           23\n");
}

TEST(Table, TakesRowsOfAnyLength) {
  EXPECT_EQ(table({}), "");
  EXPECT_EQ(table({{}}), "\n");
  EXPECT_EQ(table({{"a"}, {"bc", "d"}, {}}), "a\nbc  d\n\n");
}

}  // namespace
}  // namespace drivetrain::core
