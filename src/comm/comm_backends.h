// SPDX-License-Identifier: Apache-2.0
// Communication libraries for accelerators' own memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <drivetrain/config.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

#include "comm/transport.h"

namespace drivetrain::comm {

// **Collective.** The transport on tensors of this type; null if the communication backend of their
// accelerator is not registered. Throws CommError if it cannot be made.
std::unique_ptr<Transport> make_device_transport(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const ProcessFacts& facts, Milliseconds timeout,
                                                 at::DeviceType type);

}  // namespace drivetrain::comm
