// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/options.h"

#include <drivetrain/error.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "core/environment.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;

constexpr const char* kDescription =
    "Runs PROGRAM once per rank, with the variables that torchrun sets, and looks after the "
    "ranks:\n"
    "their lines come out whole and marked with the rank; when one fails, the others are ended "
    "and\n"
    "the first failure is reported; and none of them outlives the launcher.\n"
    "Everything after PROGRAM belongs to it. Options can be written with - or _.\n";

constexpr const char* kFooter = R"(Examples:
  drivetrain launch --num-processes 4 ./train --lr 1e-3
  drivetrain launch --cpu -n 2 --log-dir logs ./train
  drivetrain launch -n 16 --num-machines 2 --machine-rank 0 \
      --main-process-ip 10.0.0.1 --main-process-port 29500 ./train

Environment of each rank:
  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, ROLE_RANK,
  ROLE_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT,
  TORCHELASTIC_MAX_RESTARTS   as torchrun sets them; those of an outer launcher are replaced
  OMP_NUM_THREADS             cores per rank, unless set already or given by --num-threads
  DRIVETRAIN_STORE_FD         rank 0 only: an inherited socket that listens on MASTER_PORT
  DRIVETRAIN_ERROR_FILE       where the library writes a failing rank's error
  DRIVETRAIN_CPU, DRIVETRAIN_DEBUG, DRIVETRAIN_TIMEOUT    with --cpu, --debug, --timeout

Streams:
  Rank 0 reads the launcher's standard input, unless that is a terminal; the other ranks, and rank
  0 then, read nothing. A rank's standard output is a terminal if the launcher's is, likewise its
  standard error: lines appear as they are written, and rank 0's progress bar stays at the bottom.

Signals:
  Ctrl-C (SIGINT), SIGTERM, SIGHUP and SIGQUIT are passed on once; ranks still there after the
  grace period are killed, at once on the second signal. SIGUSR1 and SIGUSR2 are passed on.

Exit code:
  0 where every rank returned 0; else the first failing rank's exit code, or 128 + its signal;
  128 + the signal that ended the launch; 126 or 127 where PROGRAM cannot be run or found; 2 where
  an option is wrong.)";

// What CLI11 fills in: text, so that every value is parsed, and refused, in one manner.
struct Texts {
  std::string num_processes, num_machines, machine_rank, main_process_ip, main_process_port;
  std::string num_threads, timeout, run_id, max_restarts, monitor_interval, grace_period;
  std::string log_dir, error_file, show;
  bool cpu = false, debug = false, dry_run = false, quiet = false;
  bool bind_cores = false, prefix = false;
};

void declare_processes(CLI::App& app, Texts& texts) {
  const std::string group = "Processes";
  app.add_option("-n,--num-processes", texts.num_processes,
                 "Ranks over all machines. Default: one per accelerator device here "
                 "(CUDA_VISIBLE_DEVICES, else /dev/nvidia*) times the machines; without a device, "
                 "or with --cpu, one per machine")
      ->type_name("N")
      ->group(group);
  app.add_flag("--cpu", texts.cpu, "Run on the CPU whatever else is present")->group(group);
  app.add_flag("--bind-cores,!--no-bind-cores", texts.bind_cores,
               "Give each rank cores of its own, out of those that the launcher may use. Default: "
               "on where no accelerator is used. Without effect where there are fewer cores than "
               "ranks, or a cgroup quota allows less than the cores")
      ->group(group);
  app.add_option("--num-threads", texts.num_threads,
                 "OMP_NUM_THREADS of each rank. Default: the variable if set, else cores / ranks")
      ->type_name("N")
      ->group(group);
}

void declare_machines(CLI::App& app, Texts& texts) {
  const std::string group = "Machines";
  app.add_option("--num-machines", texts.num_machines,
                 "Machines; run the launcher once on each. Default: 1")
      ->type_name("N")
      ->group(group);
  app.add_option("--machine-rank", texts.machine_rank, "This machine's number. Default: 0")
      ->type_name("R")
      ->group(group);
  app.add_option("--main-process-ip", texts.main_process_ip,
                 "Address of machine 0, as the others reach it. Default on one machine: 127.0.0.1")
      ->type_name("IP")
      ->group(group);
  app.add_option("--main-process-port", texts.main_process_port,
                 "Port of rank 0's store; 0: a free one, only on one machine. Default: 0")
      ->type_name("PORT")
      ->group(group);
  app.add_option("--run-id", texts.run_id,
                 "TORCHELASTIC_RUN_ID. Default: a fresh one; on several machines IP:PORT")
      ->type_name("ID")
      ->group(group);
}

void declare_failures(CLI::App& app, Texts& texts) {
  const std::string group = "Failures";
  app.add_option("--timeout", texts.timeout,
                 "Seconds that a collective may take (DRIVETRAIN_TIMEOUT)")
      ->type_name("SECONDS")
      ->group(group);
  app.add_option("--max-restarts", texts.max_restarts,
                 "How often to start all ranks again after a failure; one machine. Default: 0")
      ->type_name("N")
      ->group(group);
  app.add_option("--monitor-interval", texts.monitor_interval,
                 "After the first failure, how long to wait for ranks that fail by themselves, to "
                 "tell the cause from its consequences, before the rest is ended. A rank's exit is "
                 "noticed at once whatever this says. Default: 0.1")
      ->type_name("SECONDS")
      ->group(group);
  app.add_option("--grace-period", texts.grace_period,
                 "From SIGTERM (or Ctrl-C) to SIGKILL. Default: 0.5")
      ->type_name("SECONDS")
      ->group(group);
  app.add_option("--error-file", texts.error_file,
                 "Where to write the failure as JSON. Default: error.json in --log-dir, if given")
      ->type_name("FILE")
      ->group(group);
  app.add_flag("--debug", texts.debug, "Check that collectives match (DRIVETRAIN_DEBUG=1)")
      ->group(group);
}

void declare_output(CLI::App& app, Texts& texts) {
  const std::string group = "Output";
  app.add_option("--log-dir", texts.log_dir,
                 "Keep each rank's streams in files there: rank-0.out, rank-0.err, ...; after a "
                 "restart rank-0.restart-1.out, ...")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--show", texts.show,
                 "Whose lines to print: all, main (rank 0, or this machine's first) or none. "
                 "Default: all")
      ->type_name("WHICH")
      ->group(group);
  app.add_flag("-q,--quiet", texts.quiet, "The same as --show none")->group(group);
  app.add_flag("--prefix,!--no-prefix", texts.prefix,
               "Mark each line with its rank. Default: where there are several ranks")
      ->group(group);
  app.add_flag("--dry-run", texts.dry_run,
               "Print each rank's environment and command; start nothing")
      ->group(group);
}

// CLI11's usage line does not know of PROGRAM.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "Usage: drivetrain launch [options] PROGRAM [arguments]\n";
  }
};

void declare(CLI::App& app, Texts& texts) {
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(kFooter);
  app.get_formatter()->column_width(34);
  app.set_help_flag("-h,--help", "Print this help")->group("Output");
  declare_processes(app, texts);
  declare_machines(app, texts);
  declare_failures(app, texts);
  declare_output(app, texts);
}

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
  std::string out = argument;
  const auto end = out.begin() + static_cast<std::ptrdiff_t>(std::min(out.find('='), out.size()));
  std::replace(out.begin(), end, '_', '-');
  return out;
}

struct Parts {
  std::vector<std::string> options;
  std::vector<std::string> command;
};

// Splits at PROGRAM: the first argument that is neither an option nor an option's value.
Parts split_at_program(const CLI::App& app, const std::vector<std::string>& arguments) {
  Parts parts;
  size_t i = 0;
  for (; i < arguments.size() && arguments[i].size() > 1 && arguments[i][0] == '-'; ++i) {
    if (arguments[i] == "--") {
      ++i;
      break;
    }
    const std::string argument = with_dashes(arguments[i]);
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr) refuse_option(app, name);
    parts.options.push_back(argument);
    if (option->get_items_expected_max() == 0 || equals != std::string::npos) continue;
    if (++i == arguments.size())
      throw ConfigError(str("option ", name, " has no value; allowed: ", name, " ",
                            option->get_type_name(), "; see drivetrain launch --help"));
    parts.options.push_back(arguments[i]);
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

void read_processes(const Texts& texts, LaunchOptions& options) {
  const int devices = options.cpu ? 0 : count_devices();
  options.num_processes = read_int("--num-processes", texts.num_processes,
                                   std::max(devices, 1) * options.num_machines, 1, 1'048'576);
  if (options.num_processes % options.num_machines != 0)
    throw ConfigError(str("--num-processes is ", options.num_processes, " for ",
                          options.num_machines, " machines; allowed: a multiple of ",
                          options.num_machines, "; every machine runs the same number of ranks"));
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

LaunchOptions read(const CLI::App& app, const Texts& texts) {
  LaunchOptions options;
  options.cpu = texts.cpu;
  options.debug = texts.debug;
  options.dry_run = texts.dry_run;
  read_machines(texts, options);
  read_processes(texts, options);
  read_failures(texts, options);
  const bool on_cpu = options.cpu || count_devices() == 0;
  options.bind_cores = app.count("--bind-cores") > 0 ? texts.bind_cores : on_cpu;
  if (!texts.num_threads.empty())
    options.num_threads = read_int("--num-threads", texts.num_threads, 1, 1, 65'536);
  options.log_dir = texts.log_dir;
  options.error_file = texts.error_file;
  if (options.error_file.empty() && !options.log_dir.empty())
    options.error_file = options.log_dir + "/error.json";
  options.show = read_show(texts);
  if (app.count("--prefix") > 0) options.prefix = texts.prefix;
  return options;
}

}  // namespace

int count_devices() {
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    const std::string list = core::trim(visible);
    return list.empty() || list == "-1" ? 0 : static_cast<int>(core::split(list, ',').size());
  }
  int count = 0;
  while (std::filesystem::exists(str("/dev/nvidia", count))) ++count;
  return count;
}

std::optional<LaunchOptions> parse_launch_options(const std::vector<std::string>& arguments,
                                                  std::ostream& out) {
  CLI::App app(kDescription);
  Texts texts;
  declare(app, texts);
  Parts parts = split_at_program(app, arguments);
  try {
    std::reverse(parts.options.begin(), parts.options.end());  // CLI11 takes them from the back
    app.parse(parts.options);
  } catch (const CLI::CallForHelp&) {
    out << app.help();
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
