// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace drivetrain::sim {

// For the calling thread, for good: LibTorch's operations run kernels at once, without autograd.
void enter_kernel_thread();

// Streams do not survive fork. **Throws HardwareError if** this process is a child of fork that has
// not called exec since the devices were used. `what` is for the message.
void refuse_in_child(const char* what);
bool in_child();

// From here on children of fork are noticed.
void watch_forks();

}  // namespace drivetrain::sim
