// SPDX-License-Identifier: Apache-2.0
// NCCL by c10d. Defined only where DRIVETRAIN_HAS_NCCL is (cmake/Cuda.cmake).
#pragma once

#include <drivetrain/comm.h>

namespace drivetrain::comm {

// **Collective.** A CommBackendFactory: one rank's end, on the device that is current at its first
// collective.
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int world_size, std::chrono::milliseconds timeout);

}  // namespace drivetrain::comm
