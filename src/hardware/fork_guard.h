// SPDX-License-Identifier: Apache-2.0
// A process that was forked after its parent had used a device inherits a driver's library that
// does not work in it: calls hang, crash or fail with errors that say something else. So they are
// refused. What exec starts is a new process, and free of this.
#pragma once

namespace drivetrain::hardware {

// This process has started a driver's library. Cheap after the first call.
void note_device_use();

// Was this process forked from one that had noted device use?
bool forked_after_device_use() noexcept;

inline constexpr const char* kForkedTooLate =
    "this process was forked after its parent had used a device (fork before that, or start "
    "processes by exec, as drivetrain launch does)";

}  // namespace drivetrain::hardware
