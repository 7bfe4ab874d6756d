// SPDX-License-Identifier: Apache-2.0
// `drivetrain doctor`: collects the facts, examines them, and says what to do.
#include <algorithm>
#include <ctime>
#include <iomanip>
#include <iostream>

#include <sys/stat.h>

#include "cli/doctor/checks.h"
#include "cli/env/command_line.h"
#include "cli/subcommand.h"
#include "core/environment.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

constexpr auto kLookupLimit = 5s;

struct DoctorOptions {
  ProbeOptions probe;
  std::string ranks, port;
};

// As `drivetrain launch` would choose: one a device, else one.
int default_ranks(const Facts& facts) {
  if (facts.process.local_world_size > 1) return facts.process.local_world_size;
  int devices = 1;
  for (const hardware::DriverFound& driver : facts.drivers)
    devices = std::max(devices, driver.computing);
  return devices;
}

Network ask_network(const Facts& facts, const std::string& port) {
  Network network;
  network.hostname = look_up(facts.system.hostname, kLookupLimit);
  if (const auto address = core::environment("MASTER_ADDR"))
    network.main_address = look_up(*address, kLookupLimit);
  // A rank's launcher holds the port on purpose; elsewhere it must be free.
  const bool is_held = core::environment("DRIVETRAIN_STORE_FD") || facts.process.store_is_served;
  const auto variable = core::environment("MASTER_PORT");
  if (!port.empty())
    network.store_port = try_port(static_cast<int>(core::parse_int("--port", port, 1, 65535)));
  else if (variable && facts.launcher_problem.empty() && !is_held && facts.process.rank == 0)
    network.store_port =
        try_port(static_cast<int>(core::parse_int("MASTER_PORT", *variable, 1, 65535)));
  return network;
}

Case collect(const DoctorOptions& options) {
  Case patient;
  const int ranks =
      options.ranks.empty()
          ? 0
          : static_cast<int>(core::parse_int("--num-processes", options.ranks, 1, 65'536));
  patient.facts = collect_facts(options.probe.probe, options.probe.limit());
  patient.ranks = ranks > 0 ? ranks : default_ranks(patient.facts);
  patient.network = ask_network(patient.facts, options.port);
  patient.now = std::time(nullptr);
  struct stat written{};
  if (::stat(patient.facts.command.c_str(), &written) == 0)
    patient.command_written = written.st_mtime;
  return patient;
}

int64_t count(const Findings& findings, Level level) {
  return std::count_if(findings.begin(), findings.end(),
                       [&](const Finding& finding) { return finding.level == level; });
}

void print_json(const Findings& findings, std::ostream& out) {
  Json checks = Json::array();
  for (const Finding& finding : findings)
    checks.push_back({{"check", finding.check},
                      {"level", name_of(finding.level)},
                      {"found", finding.found},
                      {"advice", finding.advice}});
  const Json all = {{"checks", checks},
                    {"warnings", count(findings, Level::warning)},
                    {"problems", count(findings, Level::problem)}};
  out << all.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

void print_text(const Findings& findings, std::ostream& out) {
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.check.size());
  const std::string indent(11 + width, ' ');
  for (const Finding& finding : findings) {
    out << std::left << std::setw(9) << name_of(finding.level)
        << std::setw(static_cast<int>(width) + 2) << finding.check << finding.found << "\n";
    if (!finding.advice.empty()) out << indent << "-> " << finding.advice << "\n";
  }
  const auto plural = [](int64_t number, const char* what) {
    return core::str(number, " ", what, number == 1 ? "" : "s");
  };
  out << "\n"
      << plural(count(findings, Level::problem), "problem") << ", "
      << plural(count(findings, Level::warning), "warning") << "\n";
}

}  // namespace

int doctor(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Checks this machine and installation: LibTorch, drivers, devices, cores, memory, limits, "
      "settings, names and ports. Exit code: 0 without problems, 1 with.",
      "drivetrain doctor");
  DoctorOptions options;
  declare(app, options.probe);
  app.add_option("-n,--num-processes", options.ranks,
                 "Ranks that are to run on this machine. Default: one per device, else 1")
      ->type_name("N");
  app.add_option("--port", options.port,
                 "Check that rank 0's store could listen there. Default: MASTER_PORT, if set")
      ->type_name("PORT");
  if (!parse(app, arguments, std::cout)) return 0;
  const Findings findings = examine(collect(options));
  options.probe.json ? print_json(findings, std::cout) : print_text(findings, std::cout);
  return count(findings, Level::problem) > 0 ? 1 : 0;
}

}  // namespace drivetrain::cli
