// SPDX-License-Identifier: Apache-2.0
// Variables, names, ports and the clock.
#include <algorithm>

#include "cli/doctor/checks.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;

constexpr int64_t kDay = 86'400;
constexpr double kSlowLookup = 1.0;  // seconds

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

// Did a launcher start this process, as far as its variables go?
bool is_launched(const Facts& facts) {
  return facts.process.source != "none" &&
         (facts.process.source != "torchrun" || facts.environment.contains("TORCHELASTIC_RUN_ID"));
}

std::string names_set(const Facts& facts) {
  std::vector<std::string> names;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})
    if (const auto found = facts.environment.find(name); found != facts.environment.end())
      names.push_back(str(name, "=", found->second));
  return core::join(names);
}

void check_lookup(const Lookup& lookup, const std::string& check, const std::string& advice,
                  Findings& findings) {
  const bool is_slow = lookup.seconds > kSlowLookup;
  if (!lookup.problem.empty())
    findings.push_back(
        {check, Level::problem, str(lookup.name, " does not resolve: ", lookup.problem), advice});
  else
    findings.push_back({check, is_slow ? Level::warning : Level::ok,
                        str(lookup.name, " is ", core::join(lookup.addresses),
                            is_slow ? str(", after ", lookup.seconds, " s") : ""),
                        is_slow ? "repair the name server, or " + advice : ""});
}

}  // namespace

void check_settings(const Case& patient, Findings& findings) {
  const Facts& facts = patient.facts;
  for (const auto& [name, near] : facts.unknown_variables)
    findings.push_back(
        {"settings", Level::problem,
         str(name, " is no setting", near.empty() ? "" : str("; did you mean ", near, "?")),
         "correct or unset it: the library refuses to start with it"});
  if (!facts.unknown_variables.empty()) return;  // the first of them is the problem that Config has
  if (!facts.settings_problem.empty())
    findings.push_back({"settings", Level::problem, facts.settings_problem, "correct or unset it"});
  else
    findings.push_back(
        {"settings", Level::ok, "every DRIVETRAIN_* variable that is set is known", ""});
}

void check_launcher(const Case& patient, Findings& findings) {
  const Facts& facts = patient.facts;
  const std::string set = names_set(facts);
  if (!facts.launcher_problem.empty())
    findings.push_back({"launcher", Level::problem, facts.launcher_problem,
                        "unset the variables, or start programs by drivetrain launch"});
  else if (is_launched(facts))
    findings.push_back({"launcher", Level::ok,
                        str("rank ", facts.process.rank, " of ", facts.process.world_size, ", by ",
                            facts.process.source),
                        ""});
  else if (facts.process.world_size > 1)
    findings.push_back(
        {"launcher", Level::warning,
         str(set, " outside of a launcher: a program started here is rank ", facts.process.rank,
             " and waits for ", facts.process.world_size - 1, " others"),
         "unset them, or start programs by drivetrain launch"});
  else if (!set.empty())
    findings.push_back({"launcher", Level::warning, str(set, " outside of a launcher"),
                        "unset them: a launcher sets them itself"});
}

void check_hostname(const Case& patient, Findings& findings) {
  const auto& lookup = patient.network.hostname;
  if (!lookup) return;
  check_lookup(*lookup, "hostname", str("add ", lookup->name, " to /etc/hosts"), findings);
  const auto& addresses = lookup->addresses;
  if (patient.facts.process.num_nodes > 1 && !addresses.empty() &&
      std::all_of(addresses.begin(), addresses.end(), is_loopback))
    findings.push_back(
        {"hostname", Level::warning,
         str(lookup->name, " is only the loopback: other machines cannot reach it"),
         "give its address on the network in /etc/hosts, or set GLOO_SOCKET_IFNAME"});
}

void check_main_address(const Case& patient, Findings& findings) {
  if (patient.network.main_address)
    check_lookup(*patient.network.main_address, "MASTER_ADDR", "correct MASTER_ADDR", findings);
}

void check_store_port(const Case& patient, Findings& findings) {
  const auto& port = patient.network.store_port;
  if (!port) return;
  const bool is_free = port->problem.empty();
  findings.push_back({"store port", is_free ? Level::ok : Level::problem,
                      is_free ? str("port ", port->port, " is free") : port->problem,
                      is_free ? ""
                              : "end what listens there (ss -ltnp), or choose another; on one "
                                "machine drivetrain launch finds a free one itself"});
}

void check_clock(const Case& patient, Findings& findings) {
  const auto& synchronized = patient.facts.system.clock_is_synchronized;
  const bool is_behind =
      patient.command_written > 0 && patient.now + kDay < patient.command_written;
  if (is_behind)
    findings.push_back({"clock", Level::problem,
                        str("it is ", (patient.command_written - patient.now) / kDay,
                            " days behind the time at which this command was written"),
                        "set it (chrony, timedatectl)"});
  else if (synchronized && !*synchronized && patient.facts.process.num_nodes > 1)
    findings.push_back({"clock", Level::warning,
                        "the kernel counts it as not synchronized: the times in the logs of "
                        "several machines will not fit",
                        "run chrony or ntpd"});
  else
    findings.push_back({"clock", Level::ok, "it is later than this command's own file", ""});
}

}  // namespace drivetrain::cli
