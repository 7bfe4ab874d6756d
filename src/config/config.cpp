// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/config.h>

#include "core/environment.h"

namespace drivetrain {

Config Config::from_environment() {
  Config config;
  config.accelerator = core::environment("DRIVETRAIN_ACCELERATOR").value_or(config.accelerator);
  config.cpu = core::environment_bool("DRIVETRAIN_CPU").value_or(false);
  config.debug = core::environment_bool("DRIVETRAIN_DEBUG").value_or(false);
  return config;
}

}  // namespace drivetrain
