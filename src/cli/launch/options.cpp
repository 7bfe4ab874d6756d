// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/options.h"

#include <drivetrain/error.h>

#include <algorithm>

#include "cli/launch/command_line.h"
#include "cli/launch/limits.h"
#include "core/environment.h"
#include "core/text.h"
#include "hardware/facts/drivers.h"

namespace drivetrain::cli {
namespace {

using core::str;

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

[[noreturn]] void refuse_option(const CLI::App& app, const std::string& name) {
  const std::string near = core::nearest(name, option_names(app));
  throw ConfigError(str("unknown option ", name, " before PROGRAM",
                        near.empty() ? "" : "; did you mean " + near + "?",
                        "; allowed: the options of drivetrain launch --help; the program's own go "
                        "after PROGRAM"));
}

// --num_processes=2 becomes --num-processes=2.
std::string with_dashes(const std::string& argument) {
  if (!argument.starts_with("--")) return argument;
  std::string out = argument;
  const auto end = out.begin() + static_cast<std::ptrdiff_t>(std::min(out.find('='), out.size()));
  std::replace(out.begin(), end, '_', '-');
  return out;
}

struct Parts {
  std::vector<std::string> options;
  std::vector<std::string> command;
};

// An option as written: "--name", "--name=value", "-n" or "-nvalue".
struct Written {
  std::string name;
  std::optional<std::string> value;
};

Written take_apart(const std::string& argument) {
  const bool is_long = argument.starts_with("--");
  const size_t end = is_long ? argument.find('=') : std::min<size_t>(2, argument.size());
  if (end == std::string::npos || end == argument.size()) return {argument, std::nullopt};
  return {argument.substr(0, end), argument.substr(is_long ? end + 1 : end)};
}

const CLI::Option& find_option(const CLI::App& app, const Written& written) {
  const CLI::Option* option = app.get_option_no_throw(written.name);
  if (option == nullptr) refuse_option(app, written.name);
  if (option->get_items_expected_max() == 0 && written.value)
    throw ConfigError(str("option ", written.name, " has the value \"", *written.value,
                          "\"; allowed: none; leave it out"));
  return *option;
}

// Splits at PROGRAM: the first argument that is neither an option nor an option's value.
Parts split_at_program(const CLI::App& app, const std::vector<std::string>& arguments) {
  Parts parts;
  size_t i = 0;
  for (; i < arguments.size() && arguments[i].size() > 1 && arguments[i][0] == '-'; ++i) {
    if (arguments[i] == "--") {
      ++i;
      break;
    }
    Written written = take_apart(with_dashes(arguments[i]));
    const CLI::Option& option = find_option(app, written);
    parts.options.push_back(written.name);
    if (option.get_items_expected_max() == 0) continue;
    if (!written.value && i + 1 < arguments.size()) written.value = arguments[++i];
    if (!written.value || written.value->empty())
      throw ConfigError(str("option ", written.name, " has no value; allowed: ", written.name, " ",
                            option.get_type_name(), "; see drivetrain launch --help"));
    parts.options.push_back(*written.value);
  }
  parts.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  return parts;
}

int read_int(const char* name, const std::string& text, int fallback, int minimum, int maximum) {
  if (text.empty()) return fallback;
  return static_cast<int>(core::parse_int(name, text, minimum, maximum));
}

std::chrono::milliseconds read_seconds(const char* name, const std::string& text,
                                       std::chrono::milliseconds fallback) {
  if (text.empty()) return fallback;
  const double seconds = core::parse_double(name, text, 0, 86'400);
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

Show read_show(const Texts& texts) {
  if (texts.quiet && !texts.show.empty() && texts.show != "none")
    throw ConfigError(str("--quiet contradicts --show ", texts.show, "; allowed: one of the two"));
  if (texts.quiet || texts.show == "none") return Show::none;
  if (texts.show.empty() || texts.show == "all") return Show::all;
  if (texts.show == "main") return Show::main;
  throw ConfigError(str("--show is \"", texts.show, "\"; allowed: all, main, none; correct it"));
}

void read_machines(const Texts& texts, LaunchOptions& options) {
  options.num_machines = read_int("--num-machines", texts.num_machines, 1, 1, 65'536);
  options.machine_rank = read_int("--machine-rank", texts.machine_rank, 0, 0, 65'535);
  options.main_process_port =
      read_int("--main-process-port", texts.main_process_port, 0, 0, 65'535);
  options.run_id = texts.run_id;
  if (!texts.main_process_ip.empty()) options.main_process_ip = texts.main_process_ip;
  if (options.machine_rank >= options.num_machines)
    throw ConfigError(str("--machine-rank is ", options.machine_rank, " of ", options.num_machines,
                          " machines; allowed: 0 to ", options.num_machines - 1,
                          "; correct it or --num-machines"));
  if (options.num_machines == 1) return;
  if (texts.main_process_ip.empty())
    throw ConfigError(str("--main-process-ip is missing for ", options.num_machines,
                          " machines; allowed: the address of machine 0; give it"));
  if (options.main_process_port == 0)
    throw ConfigError(str("--main-process-port is 0 for ", options.num_machines,
                          " machines; allowed: 1 to 65535, the same on each; give it"));
}

void split_devices(const hardware::SeenDevices& seen, LaunchOptions& options) {
  const auto ranks = static_cast<size_t>(options.local_world_size());
  if (options.cpu)
    throw ConfigError(
        "--split-devices contradicts --cpu (or DRIVETRAIN_CPU); allowed: one of the two; leave one "
        "out");
  if (seen.devices.size() < ranks)
    throw ConfigError(str("--split-devices has ", seen.devices.size(), " devices",
                          seen.variable.empty()
                              ? ""
                              : str(" (", seen.variable, ": ", core::join(seen.devices, ","), ")"),
                          " for ", ranks,
                          " ranks of this machine; allowed: a device a rank; "
                          "start fewer ranks, or leave it out"));
  options.visible_devices = seen.variable;
  options.device_of_rank.assign(seen.devices.begin(),
                                seen.devices.begin() + static_cast<std::ptrdiff_t>(ranks));
}

void read_processes(const Texts& texts, LaunchOptions& options) {
  const hardware::SeenDevices seen =
      options.cpu ? hardware::SeenDevices() : hardware::seen_devices();
  const auto devices = static_cast<int>(seen.devices.size());
  options.num_processes = read_int("--num-processes", texts.num_processes,
                                   std::max(devices, 1) * options.num_machines, 1, 1'048'576);
  if (options.num_processes % options.num_machines != 0)
    throw ConfigError(str("--num-processes is ", options.num_processes, " for ",
                          options.num_machines, " machines; allowed: a multiple of ",
                          options.num_machines, "; every machine runs the same number of ranks"));
  if (const int most = most_local_ranks(); options.local_world_size() > most)
    throw ConfigError(str("--num-processes is ", options.num_processes, ", ",
                          options.local_world_size(), " of them here; allowed: up to ", most,
                          " on this machine, by its limits on open files (ulimit -Hn) and "
                          "processes; raise them, or use more machines"));
  options.bind_cores = devices == 0;
  if (texts.split_devices) split_devices(seen, options);
}

void read_failures(const Texts& texts, LaunchOptions& options) {
  if (!texts.timeout.empty()) (void)core::parse_double("--timeout", texts.timeout, 0.001, 1e9);
  options.timeout = texts.timeout;
  options.max_restarts = read_int("--max-restarts", texts.max_restarts, 0, 0, 1'000'000);
  options.monitor_interval =
      read_seconds("--monitor-interval", texts.monitor_interval, options.monitor_interval);
  options.grace_period = read_seconds("--grace-period", texts.grace_period, options.grace_period);
  if (options.max_restarts > 0 && options.num_machines > 1)
    throw ConfigError(str("--max-restarts is ", options.max_restarts, " for ", options.num_machines,
                          " machines; allowed: 0, since a launcher restarts only its own ranks; "
                          "leave it out"));
}

// Machines may share the folder.
std::string error_file_name(int machine_rank) {
  return machine_rank == 0 ? "/error.json" : str("/error.machine-", machine_rank, ".json");
}

LaunchOptions read(const CLI::App& app, const Texts& texts) {
  LaunchOptions options;
  options.cpu = texts.cpu || core::environment_bool("DRIVETRAIN_CPU").value_or(false);
  options.debug = texts.debug;
  options.dry_run = texts.dry_run;
  read_machines(texts, options);
  read_processes(texts, options);
  read_failures(texts, options);
  if (app.count("--bind-cores") > 0) options.bind_cores = texts.bind_cores;
  if (!texts.num_threads.empty())
    options.num_threads = read_int("--num-threads", texts.num_threads, 1, 1, 65'536);
  options.log_dir = texts.log_dir;
  options.error_file = texts.error_file;
  if (options.error_file.empty() && !options.log_dir.empty())
    options.error_file = options.log_dir + error_file_name(options.machine_rank);
  options.show = read_show(texts);
  if (app.count("--prefix") > 0) options.prefix = texts.prefix;
  return options;
}

}  // namespace

std::optional<LaunchOptions> parse_launch_options(const std::vector<std::string>& arguments,
                                                  std::ostream& out) {
  CLI::App app;
  Texts texts;
  declare(app, texts);
  Parts parts = split_at_program(app, arguments);
  try {
    std::reverse(parts.options.begin(), parts.options.end());  // CLI11 takes them from the back
    app.parse(parts.options);
  } catch (const CLI::CallForHelp&) {
    print_help(app, out);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw ConfigError(str(error.what(), "; see drivetrain launch --help"));
  }
  LaunchOptions options = read(app, texts);
  if (parts.command.empty() || parts.command.front().empty())
    throw ConfigError(
        "PROGRAM is missing; allowed: drivetrain launch [options] PROGRAM [arguments]; "
        "see drivetrain launch --help");
  options.command = std::move(parts.command);
  return options;
}

}  // namespace drivetrain::cli
