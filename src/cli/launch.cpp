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

// A private folder for error files; "" where the log folder takes them. Guard and supervisor both
// remove it, since either may be killed.
class Scratch {
 public:
  explicit Scratch(bool needed) {
    if (!needed) return;
    path_ = core::environment("TMPDIR").value_or("/tmp") + "/drivetrain-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr)
      throw ConfigError(str("cannot make a folder ", path_, ": ", std::strerror(errno),
                            "; allowed: a TMPDIR to write in; set it, or give --log-dir"));
  }
  ~Scratch() { remove(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::string& path() const { return path_; }
  void remove() const {
    std::error_code ignored;  // it is gone already, or holds what others put there
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

 private:
  std::string path_;
};

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

ListeningPort listen_for(const LaunchOptions& options) {
  if (options.machine_rank != 0) return {Fd(), options.main_process_port};
  // Other machines may reach machine 0 by another address than the one given here.
  const std::string address = options.num_machines == 1 ? options.main_process_ip : "";
  return listen_on(address, options.main_process_port);
}

int run(const LaunchOptions& options, const std::string& program) {
  ListeningPort port = listen_for(options);
  prepare_log_dir(options);
  const Scratch scratch(options.log_dir.empty());
  const LaunchPlan plan =
      make_plan(options, program, machine_for(options), scratch.path(), inherited_environment());
  return run_guarded([&](const Fd& guard, const SignalSet& signals) {
    const int code = Supervisor(plan, std::move(port), guard, signals).run();
    scratch.remove();
    return code;
  });
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
  if (!options->dry_run) return run(*options, program.path);
  print_plan(make_plan(*options, program.path, machine_for(*options), "/tmp/drivetrain-XXXXXX",
                       inherited_environment()),
             std::cout);
  return 0;
}

}  // namespace drivetrain::cli
