// SPDX-License-Identifier: Apache-2.0
// The command `drivetrain`: finds the subcommand and turns errors into messages and exit codes.
#include <drivetrain/error.h>

#include <algorithm>
#include <array>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "cli/subcommand.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

constexpr int kUsageError = 2;

constexpr std::array kSubcommands = {
    Subcommand{"launch", "Run a program as one process per rank, and look after them", launch},
    Subcommand{"env", "Print what is known of this machine and installation", env},
    Subcommand{"doctor", "Check this machine and installation, and say what to do", doctor},
};

void print_help(std::ostream& out) {
  out << "drivetrain " DRIVETRAIN_VERSION
         ": train LibTorch programs on many devices, processes and machines\n\n"
         "Usage: drivetrain COMMAND [options]\n\nCommands:\n";
  for (const Subcommand& command : kSubcommands)
    out << "  " << std::left << std::setw(12) << command.name << command.summary << "\n";
  out << "\nOptions:\n"
         "  -h, --help    Print this help, or a command's: drivetrain COMMAND --help\n"
         "  --version     Print the version\n";
}

[[noreturn]] void refuse_command(const std::string& name) {
  std::vector<std::string> names;
  names.reserve(kSubcommands.size());
  for (const Subcommand& command : kSubcommands) names.emplace_back(command.name);
  const std::string near = core::nearest(name, names);
  throw ConfigError(core::str("unknown command \"", name, "\"",
                              near.empty() ? "" : "; did you mean \"" + near + "\"?",
                              "; allowed: ", core::join(names), "; see drivetrain --help"));
}

int dispatch(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    print_help(std::cerr);
    return kUsageError;
  }
  const std::string& name = arguments.front();
  if (name == "--help" || name == "-h" || name == "help") {
    print_help(std::cout);
    return 0;
  }
  if (name == "--version") {
    std::cout << "drivetrain " DRIVETRAIN_VERSION "\n";
    return 0;
  }
  for (const Subcommand& command : kSubcommands)
    if (command.name == name) return command.run({arguments.begin() + 1, arguments.end()});
  refuse_command(name);
}

// What was printed may have gone nowhere: to a full disk, say.
int with_output_written(int code) {
  if (std::cout.flush()) return code;
  throw Error("cli",
              "the output could not be written; allowed: a standard output with room for it");
}

// A closed standard stream would otherwise become the number of some pipe or socket.
void open_missing_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", O_RDWR);
}

}  // namespace
}  // namespace drivetrain::cli

int main(int argc, char** argv) {
  drivetrain::cli::open_missing_streams();
  try {
    return drivetrain::cli::with_output_written(drivetrain::cli::dispatch({argv + 1, argv + argc}));
  } catch (const drivetrain::ConfigError& error) {
    std::cerr << "drivetrain: " << error.what_happened() << "\n";
    return drivetrain::cli::kUsageError;
  } catch (const drivetrain::Error& error) {
    std::cerr << "drivetrain: " << error.what_happened() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "drivetrain: " << error.what() << "\n";
    return 1;
  }
}
