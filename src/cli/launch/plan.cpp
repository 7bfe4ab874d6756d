// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/plan.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <iomanip>

#include <sys/random.h>

#include "cli/launch/command.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;

constexpr std::array<std::string_view, 25> kNames = {"RANK",
                                                     "WORLD_SIZE",
                                                     "LOCAL_RANK",
                                                     "LOCAL_WORLD_SIZE",
                                                     "GROUP_RANK",
                                                     "GROUP_WORLD_SIZE",
                                                     "ROLE_RANK",
                                                     "ROLE_WORLD_SIZE",
                                                     "ROLE_NAME",
                                                     "NODE_RANK",
                                                     "MASTER_ADDR",
                                                     "MASTER_PORT",
                                                     "SLURM_PROCID",
                                                     "SLURM_LOCALID",
                                                     "SLURM_NTASKS",
                                                     "SLURM_NPROCS",
                                                     "MPI_LOCALRANKID",
                                                     "MPI_LOCALNRANKS",
                                                     "PALS_RANKID",
                                                     "PALS_LOCAL_RANKID",
                                                     "DRIVETRAIN_CPU",
                                                     "DRIVETRAIN_DEBUG",
                                                     "DRIVETRAIN_TIMEOUT",
                                                     "DRIVETRAIN_STORE_FD",
                                                     "DRIVETRAIN_ERROR_FILE"};

constexpr std::array<std::string_view, 5> kPrefixes = {"TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_",
                                                       "PMIX_", "MV2_COMM_WORLD_"};

// What the user may have set for the library stays, unless an option says otherwise.
bool is_setting(const std::string& name) {
  return name == "DRIVETRAIN_CPU" || name == "DRIVETRAIN_DEBUG" || name == "DRIVETRAIN_TIMEOUT";
}

bool overridden(const std::string& name, const LaunchOptions& options) {
  if (name == "DRIVETRAIN_CPU") return options.cpu;
  if (name == "DRIVETRAIN_DEBUG") return options.debug;
  if (name == "DRIVETRAIN_TIMEOUT") return !options.timeout.empty();
  if (!options.visible_devices.empty() && name == options.visible_devices) return true;
  return is_launcher_variable(name);
}

std::string fresh_run_id() {
  uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) != sizeof bits)
    bits = static_cast<uint64_t>(::time(nullptr));
  std::ostringstream out;
  out << std::hex << std::setfill('0') << std::setw(16) << bits;
  return out.str();
}

// Machines that meet at one address agree on an id without talking.
std::string choose_run_id(const LaunchOptions& options) {
  if (!options.run_id.empty()) return options.run_id;
  if (options.num_machines == 1) return fresh_run_id();
  return str(options.main_process_ip, ":", options.main_process_port);
}

bool holds(const std::vector<std::string>& environment, const std::string& name) {
  return std::any_of(environment.begin(), environment.end(),
                     [&](const std::string& entry) { return entry.starts_with(name + "="); });
}

Variables world_variables(const LaunchOptions& options, int local_rank) {
  const int local_size = options.local_world_size();
  const std::string rank = std::to_string(options.machine_rank * local_size + local_rank);
  const std::string size = std::to_string(options.num_processes);
  return {{"RANK", rank},
          {"WORLD_SIZE", size},
          {"LOCAL_RANK", std::to_string(local_rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(local_size)},
          {"GROUP_RANK", std::to_string(options.machine_rank)},
          {"GROUP_WORLD_SIZE", std::to_string(options.num_machines)},
          {"ROLE_RANK", rank},
          {"ROLE_WORLD_SIZE", size},
          {"MASTER_ADDR", options.main_process_ip},
          {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)}};
}

void add_settings(const LaunchOptions& options, Variables& variables) {
  if (options.cpu) variables.emplace_back("DRIVETRAIN_CPU", "1");
  if (options.debug) variables.emplace_back("DRIVETRAIN_DEBUG", "1");
  if (!options.timeout.empty()) variables.emplace_back("DRIVETRAIN_TIMEOUT", options.timeout);
}

std::string error_file_of(const LaunchOptions& options, const std::string& scratch, int rank) {
  const std::string& folder = options.log_dir.empty() ? scratch : options.log_dir;
  return str(std::filesystem::absolute(folder).string(), "/rank-", rank, ".error.json");
}

}  // namespace

bool is_launcher_variable(const std::string& name) {
  if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) return !is_setting(name);
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

LaunchPlan make_plan(const LaunchOptions& options, const std::string& program,
                     const Machine& machine, const std::string& scratch,
                     const std::vector<std::string>& environment) {
  LaunchPlan plan{options, program, choose_run_id(options), {}, {}, false};
  plan.prefix = options.prefix.value_or(options.num_processes > 1);
  const bool set_threads = options.num_threads || !holds(environment, "OMP_NUM_THREADS");
  for (const std::string& entry : environment) {
    const std::string name = entry.substr(0, entry.find('='));
    if (overridden(name, options) || (set_threads && name == "OMP_NUM_THREADS")) continue;
    plan.inherited.push_back(entry);
  }
  const auto shares = share_cores(machine, options.local_world_size(), options.bind_cores);
  for (int local = 0; local < options.local_world_size(); ++local) {
    RankPlan rank;
    rank.local_rank = local;
    rank.rank = options.machine_rank * options.local_world_size() + local;
    rank.share = shares[static_cast<size_t>(local)];
    rank.error_file = error_file_of(options, scratch, rank.rank);
    rank.variables = world_variables(options, local);
    rank.variables.emplace_back("TORCHELASTIC_RUN_ID", plan.run_id);
    rank.variables.emplace_back("DRIVETRAIN_ERROR_FILE", rank.error_file);
    const int threads = options.num_threads.value_or(rank.share.threads);
    if (set_threads) rank.variables.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
    if (!options.visible_devices.empty())
      rank.variables.emplace_back(options.visible_devices,
                                  options.device_of_rank[static_cast<size_t>(local)]);
    add_settings(options, rank.variables);
    plan.ranks.push_back(std::move(rank));
  }
  return plan;
}

Variables start_variables(int port, int restart, int store_fd) {
  Variables variables = {{"MASTER_PORT", std::to_string(port)},
                         {"TORCHELASTIC_RESTART_COUNT", std::to_string(restart)}};
  if (store_fd >= 0) variables.emplace_back("DRIVETRAIN_STORE_FD", std::to_string(store_fd));
  return variables;
}

void print_plan(const LaunchPlan& plan, std::ostream& out) {
  const LaunchOptions& options = plan.options;
  if (options.main_process_port == 0)
    out << "# MASTER_PORT is 0 here: a free port is taken at the start.\n";
  if (options.machine_rank == 0)
    out << "# Rank 0 also inherits the socket that listens there: DRIVETRAIN_STORE_FD.\n";
  for (const RankPlan& rank : plan.ranks) {
    out << "# rank " << rank.rank << ", "
        << (rank.share.cpus.empty() ? "not bound" : "bound to CPUs " + cpu_list(rank.share.cpus))
        << "\n";
    Variables variables = rank.variables;
    for (auto& variable : start_variables(options.main_process_port, 0, -1))
      variables.push_back(std::move(variable));
    std::sort(variables.begin(), variables.end());
    for (const auto& [name, value] : variables) out << name << "=" << shell_quoted(value) << " ";
    out << shell_quoted(plan.program);
    for (size_t i = 1; i < options.command.size(); ++i)
      out << " " << shell_quoted(options.command[i]);
    out << "\n";
  }
}

}  // namespace drivetrain::cli
