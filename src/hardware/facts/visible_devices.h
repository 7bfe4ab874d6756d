// SPDX-License-Identifier: Apache-2.0
// What CUDA_VISIBLE_DEVICES, ASCEND_RT_VISIBLE_DEVICES, ZE_AFFINITY_MASK and their kin say.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace drivetrain::hardware {

enum class DeviceForm {
  index,  // "3"
  tile,   // "3.1": a part of a device, as Level Zero numbers them
  uuid,   // "GPU-8932f937-...": whole, or enough of its start
  mig,    // "MIG-<uuid>" or "MIG-GPU-<uuid>/<instance>/<compute instance>"
};

struct VisibleDevice {
  DeviceForm form = DeviceForm::index;
  std::string text;  // verbatim, without blanks around it
};

// The entries in order. As CUDA's documentation has it, a negative index ends the list, so "-1" and
// an empty value are no device; "NoDevFiles", which Slurm writes, is none too. **Throws ConfigError
// if** an entry has none of the four forms, or the same one is there twice (the vendors' runtimes
// then show no device at all); the message names `variable`, the value and the entry.
std::vector<VisibleDevice> parse_visible_devices(std::string_view variable, std::string_view value);

}  // namespace drivetrain::hardware
