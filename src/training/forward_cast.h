// SPDX-License-Identifier: Apache-2.0
// The precision that prepared models run in.
#pragma once

#include <drivetrain/precision.h>
#include <drivetrain/prepared.h>

#include <optional>

namespace drivetrain::training {

// None where nothing is to be converted.
std::optional<detail::ForwardCast> cast_for(MixedPrecision precision,
                                            const MixedPrecisionPolicy& policy,
                                            c10::DeviceType device, bool float32_outputs);

}  // namespace drivetrain::training
