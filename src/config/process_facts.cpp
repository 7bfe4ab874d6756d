// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/config.h>

#include "core/environment.h"

namespace drivetrain {

ProcessFacts ProcessFacts::from_environment() {
  const auto read = [](const char* name, int otherwise) {
    return static_cast<int>(core::environment_int(name, 0, 1 << 30).value_or(otherwise));
  };
  ProcessFacts facts;
  facts.world_size = read("WORLD_SIZE", 1);
  facts.rank = read("RANK", 0);
  facts.local_rank = read("LOCAL_RANK", facts.rank);
  facts.local_world_size = read("LOCAL_WORLD_SIZE", facts.world_size);
  facts.node_rank = read("GROUP_RANK", 0);
  facts.main_port = read("MASTER_PORT", 29500);
  facts.main_address = core::environment("MASTER_ADDR").value_or(facts.main_address);
  if (const auto fd = core::environment_int("DRIVETRAIN_STORE_FD", 0, 1 << 20))
    facts.store_fd = static_cast<int>(*fd);
  return facts;
}

}  // namespace drivetrain
