// SPDX-License-Identifier: Apache-2.0
#include "core/sizes.h"

#include <drivetrain/error.h>
#include <gtest/gtest.h>

#include "expect_error.h"

namespace drivetrain::core {
namespace {

TEST(Sizes, ParseBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("m", "0MB"), 0);
  EXPECT_EQ(parse_bytes("m", "100MB"), 100'000'000);
  EXPECT_EQ(parse_bytes("m", "2GiB"), int64_t{2} << 30);
  EXPECT_EQ(parse_bytes("m", " 512 KiB "), 512 << 10);
  EXPECT_EQ(parse_bytes("m", "1.5GB"), 1'500'000'000);
  EXPECT_EQ(parse_bytes("m", "7B"), 7);
}

TEST(Sizes, RefusesWhatHasNoUnitOrSign) {
  for (const char* bad : {"", "5", "5MBB", "5k0MB", "-1GB", "1.2.3GB", "GiB", "9999999TiB"})
    EXPECT_ERROR(parse_bytes("--memory", bad), ConfigError, "--memory is \"");
}

TEST(Sizes, FormatsInBinaryUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(int64_t{24} << 30), "24.0 GiB");
}

}  // namespace
}  // namespace drivetrain::core
