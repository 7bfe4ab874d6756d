// SPDX-License-Identifier: Apache-2.0
#include <ATen/autocast_mode.h>
#include <drivetrain/error.h>
#include <drivetrain/hardware.h>

#include <algorithm>

#include "core/text.h"

namespace drivetrain {

namespace {

c10::DeviceType checked(c10::DeviceType type) {
  const auto& known = at::autocast::_AUTOCAST_SUPPORTED_DEVICES;
  if (std::find(known.begin(), known.end(), type) == known.end())
    throw HardwareError(core::str("autocast was asked for devices of type ",
                                  c10::DeviceTypeName(type, true),
                                  "; allowed: types that LibTorch can cast for; ask "
                                  "capabilities().autocast first"));
  return type;
}

at::ScalarType checked(c10::DeviceType type, at::ScalarType dtype) {
  if (dtype != at::kHalf && dtype != at::kBFloat16)
    throw HardwareError(core::str(
        c10::DeviceTypeName(type, true), ": autocast was asked for ", c10::toString(dtype),
        "; allowed: Half, BFloat16; pass one of these or enabled = false"));
  return dtype;
}

}  // namespace

Autocast::Autocast(c10::DeviceType type, bool enabled, std::optional<at::ScalarType> dtype,
                   bool cache_enabled)
    : type_(checked(type)),
      enabled_(enabled),
      previous_enabled_(at::autocast::is_autocast_enabled(type)),
      previous_dtype_(at::autocast::get_autocast_dtype(type)),
      previous_cache_(at::autocast::is_autocast_cache_enabled()) {
  if (dtype) at::autocast::set_autocast_dtype(type, checked(type, *dtype));
  at::autocast::set_autocast_enabled(type, enabled);
  at::autocast::set_autocast_cache_enabled(cache_enabled);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  const bool outermost = at::autocast::decrement_nesting() == 0;
  if (outermost || enabled_) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type_, previous_enabled_);
  at::autocast::set_autocast_dtype(type_, previous_dtype_);
  at::autocast::set_autocast_cache_enabled(previous_cache_);
}

}  // namespace drivetrain
