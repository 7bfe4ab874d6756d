// SPDX-License-Identifier: Apache-2.0
// A process forked after device use is refused its parent's devices, on simulated
// devices.
#include <drivetrain/error.h>
#include <drivetrain/hardware.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "expect_error.h"
#include "hardware/fork_guard.h"
#include "scoped_env.h"

namespace drivetrain {
namespace {

// What `deed` returns, or the message of what it throws, in a forked child.
std::string in_a_child(const std::function<std::string()>& deed) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::string text;
    try {
      text = deed();
    } catch (const HardwareError& error) {
      text = std::string("HardwareError: ") + error.what();
    } catch (const std::exception& error) {
      text = std::string("another error: ") + error.what();
    }
    const ssize_t written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t count = 0; (count = ::read(ends[0], buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<size_t>(count));
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0) << text;
  return text;
}

class Fork : public ::testing::Test {
 protected:
  Fork() { accelerator->synchronize(); }
  ~Fork() override { clear_accelerator(); }

  ScopedEnv no_choice{"DRIVETRAIN_ACCELERATOR", nullptr};
  std::shared_ptr<BaseAccelerator> accelerator = make_accelerator("sim");
};

TEST_F(Fork, LeavesTheParentAlone) {
  in_a_child([] { return ""; });
  EXPECT_NO_THROW(accelerator->synchronize());
  EXPECT_TRUE(accelerator->is_available());
  EXPECT_FALSE(hardware::forked_after_device_use());
}

TEST_F(Fork, RefusesTheChildItsParentsDevices) {
  const std::string message = in_a_child([&] {
    accelerator->synchronize();
    return "it worked";
  });
  EXPECT_THAT(message, ::testing::StartsWith("HardwareError: "));
  EXPECT_THAT(message, ::testing::HasSubstr("sim: synchronize"));
  EXPECT_THAT(message, ::testing::HasSubstr("forked after its parent had used a device"));
  EXPECT_THAT(message, ::testing::HasSubstr("as drivetrain launch does"));
}

// Calls that name no device do not pass through the check of the index.
TEST_F(Fork, RefusesCallsWithoutADeviceToo) {
  const std::string message = in_a_child([&] {
    accelerator->empty_cache();
    return "it worked";
  });
  EXPECT_THAT(message, ::testing::HasSubstr("sim: empty_cache failed: this process was forked"));
}

TEST_F(Fork, RefusesAnExplicitChoice) {
  const std::string message = in_a_child([] {
    set_accelerator("sim");
    return "it worked";
  });
  EXPECT_THAT(message, ::testing::HasSubstr("\"sim\" is not available: this process was forked"));
}

TEST_F(Fork, IsTheReasonInTheReport) {
  const std::string reason = in_a_child([] {
    clear_accelerator();
    for (const ProbeResult& result : probe_report())
      if (result.name == "sim") return result.reason;
    return std::string("not in the report");
  });
  EXPECT_THAT(reason, ::testing::StartsWith("this process was forked after its parent"));
}

TEST_F(Fork, LeavesTheCpuToTheChild) {
  EXPECT_EQ(in_a_child([] {
              set_accelerator("cpu");
              get_accelerator()->synchronize();
              return get_accelerator()->name();
            }),
            "cpu");
}

TEST_F(Fork, ReachesGrandchildren) {
  EXPECT_THAT(in_a_child([&] {
                return in_a_child([&] {
                  accelerator->synchronize();
                  return "it worked";
                });
              }),
              ::testing::HasSubstr("forked after"));
}

}  // namespace
}  // namespace drivetrain
