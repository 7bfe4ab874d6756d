// SPDX-License-Identifier: Apache-2.0
// What each launcher's variables say of this process. All of it is in the environment: nothing is
// asked over the network.
#pragma once

#include <drivetrain/config.h>

#include <optional>
#include <string>

namespace drivetrain::config {

// What a launcher says; what it leaves open is none. Each function returns none if its launcher did
// not start this process, and throws ConfigError if its variables are incomplete or out of range.
struct Said {
  std::string source;
  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  std::optional<int> node_rank;
  std::optional<int> num_nodes;
  std::optional<std::string> main_address;
  std::string job;  // Equal on all ranks of the run, and on no other run if possible.
};

// RANK and WORLD_SIZE: torchrun, `drivetrain launch`, or set by hand.
std::optional<Said> said_by_torchrun();

// OMPI_COMM_WORLD_*.
std::optional<Said> said_by_openmpi();

// PMI_RANK and PMI_SIZE with MPI_LOCALRANKID (MPICH, Intel MPI), MV2_COMM_WORLD_* (MVAPICH).
std::optional<Said> said_by_pmi();

// SLURM_* of a step that srun started. The shell of an allocation and the batch script are not one,
// though they see most of the same variables.
std::optional<Said> said_by_slurm();

// The first host of a Slurm node list: "node[03-05,9],gpu1" gives "node03".
std::string first_host(const std::string& node_list);

// The number of tasks on the node of this index: "4(x2),3" gives 4, 4, 3. None if it has no entry.
std::optional<int> tasks_on_node(const std::string& tasks_per_node, int node);

}  // namespace drivetrain::config
