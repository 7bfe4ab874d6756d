// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/command_line.h"

#include <vector>

#include "core/text.h"

namespace drivetrain::cli {
namespace {

constexpr const char* kDescription =
    R"(Usage: drivetrain launch [options] PROGRAM [arguments]

Runs PROGRAM once per rank, with the variables that torchrun sets, and looks after the ranks:
their lines come out whole and marked with the rank; when one fails, the others are ended and the
first failure is reported; and neither they nor what they started outlives the launcher.

Everything after PROGRAM belongs to it; "--" before it is allowed. Names of options can be written
with - or _; of an option given twice, the last counts.
)";

constexpr const char* kFooter = R"(Environment of each rank:
  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, ROLE_RANK,
  ROLE_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT,
  TORCHELASTIC_MAX_RESTARTS
        As torchrun sets them. Those of an outer launcher (torchrun, MPI, Slurm) are replaced.
  OMP_NUM_THREADS
        Cores per rank, unless it is set already or --num-threads is given.
  DRIVETRAIN_STORE_FD
        Rank 0 only: the number of an inherited socket that listens on MASTER_PORT. It is never
        closed between choosing the port and using it, so no other program can take the port.
  DRIVETRAIN_ERROR_FILE
        Where the library of a failing rank writes {"rank", "message", "collective", "time"} as
        JSON, and "peer": RANK where it failed only because that rank had.
  DRIVETRAIN_CPU=1, DRIVETRAIN_DEBUG=1, DRIVETRAIN_TIMEOUT
        With --cpu, --debug, --timeout.

Streams:
  Rank 0 reads the launcher's standard input, unless that is a terminal: then it reads nothing, as
  the other ranks always do. A rank's standard output is a terminal where the launcher's is,
  likewise its standard error: lines appear as they are written, and the progress bar of this
  machine's first rank stays below all other lines. Elsewhere a carriage return is passed on like
  any other character.

Signals:
  SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGQUIT are passed on to every rank, once; who is still
  there after the grace period is killed, at once on a second signal. Ctrl-Z stops the ranks too.
  SIGUSR1 and SIGUSR2 are passed on.

Exit code:
  0 where every rank returned 0. Otherwise that of the first rank that failed, or 128 + its signal;
  128 + the signal that ended the launch (130 after Ctrl-C); 127 or 126 where PROGRAM was not found
  or cannot be run; 2 where an option is wrong; 1 where the launch itself failed.

Examples:
  drivetrain launch --num-processes 4 ./train --lr 1e-3
  drivetrain launch --cpu -n 2 --log-dir logs ./train
  drivetrain launch -n 16 --num-machines 2 --machine-rank 0 \
      --main-process-ip 10.0.0.1 --main-process-port 29500 ./train)";

void declare_processes(CLI::App& app, Texts& texts) {
  const std::string group = "Processes";
  app.add_option("-n,--num-processes", texts.num_processes,
                 "Ranks over all machines. Default: one per accelerator device here (what the "
                 "variable that hides devices lists, else the device files) times the machines; "
                 "without a device, or with --cpu, one per machine")
      ->type_name("N")
      ->group(group);
  app.add_flag("--cpu", texts.cpu, "Run on the CPU whatever else is present")->group(group);
  app.add_flag("--bind-cores,!--no-bind-cores", texts.bind_cores,
               "Give each rank cores of its own, out of those that the launcher may use. Default: "
               "on where no accelerator is used. Without effect where there are fewer cores than "
               "ranks, or a cgroup quota allows less than the cores")
      ->group(group);
  app.add_flag(
         "--split-devices", texts.split_devices,
         "Show each rank one device only: the one of its local rank, of those visible here, by "
         "the variable that hides devices (an index, a GPU-... or a MIG-... as it is written "
         "there). Default: every rank sees all, and takes the one of its local rank")
      ->group(group);
  app.add_option("--num-threads", texts.num_threads,
                 "OMP_NUM_THREADS of each rank. Default: the variable if set, else cores / ranks")
      ->type_name("N")
      ->group(group);
}

void declare_machines(CLI::App& app, Texts& texts) {
  const std::string group = "Machines";
  app.add_option(
         "--num-machines", texts.num_machines,
         "Run the launcher once on each, with the same options but for --machine-rank. "
         "Each looks after its own ranks; those elsewhere are told of a failure by the library. "
         "Default: 1")
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

// "-n, --num-processes N".
std::string heading(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  const bool is_flag = option.get_items_expected_max() == 0;
  return core::join(names) + (is_flag ? "" : " " + option.get_type_name());
}

void print_wrapped(std::ostream& out, const std::string& text) {
  constexpr size_t kWidth = 84;
  std::string line;
  for (const std::string& word : core::split(text, ' ')) {
    if (!line.empty() && line.size() + word.size() >= kWidth) {
      out << "        " << line << "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  out << "        " << line << "\n";
}

}  // namespace

void declare(CLI::App& app, Texts& texts) {
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  declare_processes(app, texts);
  declare_machines(app, texts);
  declare_failures(app, texts);
  declare_output(app, texts);
  app.set_help_flag("-h,--help", "Print this help")->group("Output");
}

void print_help(const CLI::App& app, std::ostream& out) {
  out << kDescription;
  for (const char* group : {"Processes", "Machines", "Failures", "Output"}) {
    out << "\n" << group << ":\n";
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_group() != group) continue;
      out << "  " << heading(*option) << "\n";
      print_wrapped(out, option->get_description());
    }
  }
  out << "\n" << kFooter << "\n";
}

}  // namespace drivetrain::cli
