// SPDX-License-Identifier: Apache-2.0
#include "config/launchers.h"

#include <drivetrain/error.h>

#include <vector>

#include "core/environment.h"
#include "core/text.h"

namespace drivetrain::config {

using core::environment;
using core::str;

namespace {

constexpr int kMostRanks = 1 << 24;

std::optional<int> number(const std::string& name, int minimum = 0) {
  const auto value = core::environment_int(name, minimum, kMostRanks);
  return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

std::string first_set(const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (const auto value = environment(name)) return *value;
  return "";
}

// Rank and size belong together: one without the other is a launch gone wrong.
std::optional<Said> rank_and_size(const std::string& source, const std::string& rank_name,
                                  const std::string& size_name) {
  const auto rank = number(rank_name);
  const auto size = number(size_name, 1);
  if (!rank && !size) return std::nullopt;
  if (!rank || !size)
    throw ConfigError(str(rank ? rank_name : size_name, " is set, but ",
                          rank ? size_name : rank_name,
                          " is not; allowed: both or none; set or unset both"));
  Said said;
  said.source = source;
  said.rank = *rank;
  said.world_size = *size;
  return said;
}

}  // namespace

std::optional<Said> said_by_torchrun() {
  auto said = rank_and_size("torchrun", "RANK", "WORLD_SIZE");
  if (!said) return said;
  said->local_rank = number("LOCAL_RANK");
  said->local_world_size = number("LOCAL_WORLD_SIZE", 1);
  said->node_rank = number("GROUP_RANK");
  said->num_nodes = number("GROUP_WORLD_SIZE", 1);
  said->job = str(environment("TORCHELASTIC_RUN_ID").value_or("run"), "/",
                  environment("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  return said;
}

std::optional<Said> said_by_openmpi() {
  auto said = rank_and_size("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  if (!said) return said;
  said->local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK");
  said->local_world_size = number("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
  said->job = first_set({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"});
  return said;
}

std::optional<Said> said_by_pmi() {
  auto said = rank_and_size("pmi", "PMI_RANK", "PMI_SIZE");
  if (said) {
    said->local_rank = number("MPI_LOCALRANKID");
    said->local_world_size = number("MPI_LOCALNRANKS", 1);
    said->job = first_set({"PMIX_NAMESPACE", "PMI_PORT"});
    return said;
  }
  said = rank_and_size("pmi", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE");
  if (!said) return said;
  said->local_rank = number("MV2_COMM_WORLD_LOCAL_RANK");
  said->local_world_size = number("MV2_COMM_WORLD_LOCAL_SIZE", 1);
  return said;
}

std::string first_host(const std::string& node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    const size_t end = node_list.find(']', i);
    const std::string range = node_list.substr(i + 1, end - i - 1);
    host += range.substr(0, range.find_first_of("-,"));
    if (end == std::string::npos) break;
    i = end;
  }
  return host;
}

std::optional<int> tasks_on_node(const std::string& tasks_per_node, int node) {
  const std::string what = "environment variable SLURM_STEP_TASKS_PER_NODE";
  for (const std::string& part : core::split(tasks_per_node, ',')) {
    const size_t times = part.find("(x");
    const auto tasks = core::parse_int(what, part.substr(0, times), 1, kMostRanks);
    const auto nodes =
        times == std::string::npos
            ? 1
            : core::parse_int(what, part.substr(times + 2, part.find(')') - times - 2), 1,
                              kMostRanks);
    if (node < nodes) return static_cast<int>(tasks);
    node -= static_cast<int>(nodes);
  }
  return std::nullopt;
}

std::optional<Said> said_by_slurm() {
  // srun numbers its steps; the batch script has no number, and the shell of an allocation one of
  // the reserved ones at the end of the range.
  constexpr int64_t kReservedSteps = 4'000'000'000;
  auto step = core::environment_int("SLURM_STEP_ID", 0, UINT32_MAX);
  if (!step) step = core::environment_int("SLURM_STEPID", 0, UINT32_MAX);
  if (!step || *step >= kReservedSteps || !environment("SLURM_PROCID")) return std::nullopt;
  const bool has_step_size = environment("SLURM_STEP_NUM_TASKS").has_value();
  auto said = rank_and_size("slurm", "SLURM_PROCID",
                            has_step_size ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
  said->local_rank = number("SLURM_LOCALID");
  said->node_rank = number("SLURM_NODEID");
  said->num_nodes = number("SLURM_STEP_NUM_NODES", 1);
  if (!said->num_nodes) said->num_nodes = number("SLURM_NNODES", 1);
  if (const auto tasks = environment("SLURM_STEP_TASKS_PER_NODE"))
    said->local_world_size = tasks_on_node(*tasks, said->node_rank.value_or(0));
  const std::string nodes = first_set({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"});
  if (!nodes.empty()) said->main_address = first_host(nodes);
  said->job = str(first_set({"SLURM_JOB_ID", "SLURM_JOBID"}), ".", *step, ".",
                  environment("SLURM_RESTART_COUNT").value_or("0"));
  return said;
}

}  // namespace drivetrain::config
