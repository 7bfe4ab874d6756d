// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/config.h>
#include <drivetrain/error.h>

#include "config/launchers.h"
#include "core/environment.h"
#include "core/text.h"

namespace drivetrain {

using config::Said;
using core::environment;
using core::str;

namespace {

void require(bool is_so, const std::string& message) {
  if (!is_so) throw ConfigError(message);
}

// The launcher nearest to the program: hand-set or torchrun's variables, then MPI's, then Slurm's.
std::optional<Said> who_said() {
  auto torchrun = config::said_by_torchrun();
  auto other = config::said_by_openmpi();
  if (!other) other = config::said_by_pmi();
  if (!other) other = config::said_by_slurm();
  if (!torchrun || !other) return torchrun ? torchrun : other;
  // A launcher may run inside another one's step, with a world of its own. The same world with
  // another rank, and no launcher that numbers as it likes, is a variable left over from somewhere.
  const bool is_elastic = environment("TORCHELASTIC_RUN_ID").has_value();
  const bool is_same_world = torchrun->world_size == other->world_size;
  require(is_elastic || !is_same_world || torchrun->rank == other->rank,
          str("RANK is ", torchrun->rank, ", but ", other->source, " says that this is rank ",
              other->rank, " of the same ", other->world_size,
              "; allowed: one launcher's variables; unset RANK and WORLD_SIZE"));
  return torchrun;
}

// Fills what the launcher leaves open: one machine, unless it says otherwise.
void place_on_nodes(const Said& said, ProcessFacts& facts) {
  facts.local_world_size = said.local_world_size.value_or(
      said.num_nodes.value_or(1) == 1 ? said.world_size
                                      : (said.world_size + *said.num_nodes - 1) / *said.num_nodes);
  const int size = facts.local_world_size;
  facts.num_nodes = said.num_nodes.value_or((said.world_size + size - 1) / size);
  facts.local_rank = said.local_rank.value_or(said.rank % size);
  facts.node_rank = said.node_rank.value_or(said.rank / size);
}

void check(const ProcessFacts& facts) {
  const auto check_rank = [&](const char* what, int value, int limit) {
    require(value < limit, str("the ", what, " is ", value, " of ", limit, " (from ", facts.source,
                               "'s variables); allowed: 0 to ", limit - 1, "; correct them"));
  };
  check_rank("rank", facts.rank, facts.world_size);
  check_rank("local rank", facts.local_rank, facts.local_world_size);
  check_rank("node rank", facts.node_rank, facts.num_nodes);
  require(facts.local_world_size <= facts.world_size,
          str("the local world size is ", facts.local_world_size, ", but the world size is ",
              facts.world_size, " (from ", facts.source,
              "'s variables); allowed: a part of the world; correct them"));
  require(facts.num_nodes <= facts.world_size,
          str("there are ", facts.num_nodes, " machines, but the world size is ", facts.world_size,
              " (from ", facts.source,
              "'s variables); allowed: a rank or more a machine; correct them"));
}

// FNV-1a, the same on every machine.
uint32_t hash(const std::string& text) {
  uint32_t value = 2166136261U;
  for (const unsigned char c : text) value = (value ^ c) * 16777619U;
  return value;
}

// Below the ports that systems give out by themselves (32768 and up).
int port_of_job(const std::string& job) { return 15000 + static_cast<int>(hash(job) % 15000); }

void find_main(const Said& said, ProcessFacts& facts) {
  const auto address = environment("MASTER_ADDR");
  if (address)
    facts.main_address = *address;
  else if (facts.num_nodes > 1 && said.main_address)
    facts.main_address = *said.main_address;
  require(facts.num_nodes == 1 || address || said.main_address,
          str("there are ", facts.num_nodes,
              " machines, but MASTER_ADDR is not set; allowed: the "
              "name or address of rank 0's machine; set it on every machine"));
  const auto port = core::environment_int("MASTER_PORT", 1, 65535);
  // torchrun's runs differ in their ports, so a port is never derived for them.
  const bool is_derivable = said.source != "torchrun" && !said.job.empty();
  require(port || is_derivable,
          str("MASTER_PORT is not set for a world of ", facts.world_size,
              "; allowed: a free port of rank 0's machine, the same for all ranks; set it, or "
              "start the program with `drivetrain launch`"));
  facts.main_port = port ? static_cast<int>(*port) : port_of_job(said.job);
}

void find_store(ProcessFacts& facts) {
  facts.store_is_served = core::environment_bool("TORCHELASTIC_USE_AGENT_STORE").value_or(false);
  const auto fd = core::environment_int("DRIVETRAIN_STORE_FD", 0, 1 << 20);
  if (!fd || facts.rank != 0) return;
  require(!facts.store_is_served,
          str("DRIVETRAIN_STORE_FD is ", *fd,
              ", but TORCHELASTIC_USE_AGENT_STORE says that the "
              "launcher serves the store; allowed: one of them; unset the other"));
  facts.store_fd = static_cast<int>(*fd);
}

}  // namespace

ProcessFacts ProcessFacts::from_environment() {
  ProcessFacts facts;
  const auto said = who_said();
  if (!said) return facts;
  facts.source = said->source;
  facts.rank = said->rank;
  facts.world_size = said->world_size;
  facts.run_id = said->job;
  place_on_nodes(*said, facts);
  check(facts);
  if (facts.world_size == 1) return facts;
  find_main(*said, facts);
  find_store(facts);
  return facts;
}

}  // namespace drivetrain
