// SPDX-License-Identifier: Apache-2.0
// Settings and launcher facts, read from the environment once and validated.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace drivetrain {

// fp16 and bf16: operations run in that type where it is safe (autocast), parameters and their
// gradients stay float32. fp16 scales the loss (precision.h).
enum class MixedPrecision { no, fp16, bf16 };

// Resolved once: what the program sets wins over the environment, the environment over the default.
struct Config {
  // DRIVETRAIN_ACCELERATOR: the name of a registered accelerator, or "auto" for the best present.
  std::string accelerator = "auto";

  // DRIVETRAIN_CPU (or ACCELERATE_USE_CPU): run on the CPU whatever else is present.
  bool cpu = false;

  // DRIVETRAIN_TIMEOUT, in seconds: how long a collective may take.
  std::chrono::milliseconds timeout{600'000};

  // DRIVETRAIN_DEBUG (or ACCELERATE_DEBUG_MODE): compare every collective over the ranks before it
  // runs, so that a mismatch is an error that names both calls.
  bool debug = false;

  // DRIVETRAIN_MIXED_PRECISION (or ACCELERATE_MIXED_PRECISION): no, fp16 or bf16.
  MixedPrecision mixed_precision = MixedPrecision::no;

  // DRIVETRAIN_GRADIENT_ACCUMULATION_STEPS (or ACCELERATE_GRADIENT_ACCUMULATION_STEPS): how many
  // micro-batches make one update.
  int64_t gradient_accumulation_steps = 1;

  // Throws ConfigError if a value does not parse, if two names of one setting disagree, if the CPU
  // and another accelerator are asked for, or if a variable DRIVETRAIN_* is unknown.
  static Config from_environment();

  bool operator==(const Config&) const = default;
};

// Who this process is, as its launcher says. Read in this order; without any, a world of one:
//   torchrun, `drivetrain launch`, or by hand: RANK and WORLD_SIZE (both or none), LOCAL_RANK,
//     LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT
//   OpenMPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   PMI (MPICH, Intel MPI): PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS; MVAPICH's
//     MV2_COMM_WORLD_*
//   Slurm: SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID, SLURM_NODEID, in a
//     step of srun only; the address is the first host of the step's node list
// MASTER_ADDR and MASTER_PORT win over what a launcher implies. Without MASTER_PORT, MPI's and
// Slurm's job id gives the port. Ranks are taken to fill one machine after the other where the
// launcher does not say.
struct ProcessFacts {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;

  // Where rank 0 serves the store that the ranks meet at. Unused in a world of one.
  std::string main_address = "127.0.0.1";
  int main_port = 0;

  // A socket that rank 0 inherited, already listening on main_port.
  std::optional<int> store_fd;

  // The launcher itself serves the store: rank 0 connects like the others.
  bool store_is_served = false;

  // Separates worlds that meet at one address: the run's id and its restart count.
  std::string run_id;

  // The launcher whose variables were read: "torchrun", "openmpi", "pmi", "slurm", or "none".
  std::string source = "none";

  // Throws ConfigError if variables are missing, out of range, or contradict each other.
  static ProcessFacts from_environment();
};

}  // namespace drivetrain
