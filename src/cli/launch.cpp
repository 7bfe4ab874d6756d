// SPDX-License-Identifier: Apache-2.0
// `drivetrain launch`: options, plan, guard and supervisor put together.
#include <drivetrain/error.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <system_error>

#include <unistd.h>

#include "cli/launch/command.h"
#include "cli/launch/guard.h"
#include "cli/launch/options.h"
#include "cli/launch/plan.h"
#include "cli/launch/supervisor.h"
#include "cli/subcommand.h"
#include "core/environment.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;

// A private folder for error files. Guard and supervisor both remove it: either may be killed.
std::string make_scratch() {
  std::string path = core::environment("TMPDIR").value_or("/tmp") + "/drivetrain-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr)
    throw ConfigError(str("cannot make a folder ", path, ": ", std::strerror(errno),
                          "; allowed: a TMPDIR to write in; set it, or give --log-dir"));
  return path;
}

void remove_scratch(const std::string& path) {
  std::error_code ignored;  // it is gone already, or holds what others put there
  if (!path.empty()) std::filesystem::remove_all(path, ignored);
}

void prepare_log_dir(const LaunchOptions& options) {
  std::error_code error;
  if (!options.log_dir.empty()) std::filesystem::create_directories(options.log_dir, error);
  if (error)
    throw ConfigError(str("cannot create --log-dir ", options.log_dir, ": ", error.message(),
                          "; allowed: a folder to write in; choose another"));
  if (!options.error_file.empty()) (void)::unlink(options.error_file.c_str());
}

std::vector<std::string> inherited_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

Machine machine_for(const LaunchOptions& options) {
  return options.num_threads && !options.bind_cores ? Machine{{{0}}, 0} : this_machine();
}

}  // namespace

int launch(const std::vector<std::string>& arguments) {
  const auto options = parse_launch_options(arguments, std::cout);
  if (!options) return 0;
  const FoundProgram program = find_program(options->command.front());
  if (program.path.empty()) {
    std::cerr << "drivetrain: " << program.problem << "\n";
    return program.exit_code;
  }
  const auto plan_in = [&](const std::string& scratch) {
    return make_plan(*options, program.path, machine_for(*options), scratch,
                     inherited_environment());
  };
  if (options->dry_run) {
    print_plan(plan_in("/tmp/drivetrain-XXXXXX"), std::cout);
    return 0;
  }
  prepare_log_dir(*options);
  const std::string scratch = options->log_dir.empty() ? make_scratch() : "";
  const LaunchPlan plan = plan_in(scratch);
  const int code = run_guarded([&](const Fd& guard, const SignalSet& signals) {
    const int result = Supervisor(plan, guard, signals).run();
    remove_scratch(scratch);
    return result;
  });
  remove_scratch(scratch);
  return code;
}

}  // namespace drivetrain::cli
