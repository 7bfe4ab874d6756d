// SPDX-License-Identifier: Apache-2.0
// LibTorch, drivers and devices: why no device is used, told apart by cause.
#include <drivetrain/error.h>

#include <algorithm>
#include <cstdlib>

#include "cli/doctor/checks.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;
using hardware::DriverFound;
using hardware::DriverRow;

std::string quoted_lines(const Probe& probe) {
  return probe.lines.empty() ? "" : str("; it wrote: ", core::join(probe.lines, " | "));
}

// What the loader's refusal means.
Finding loader_finding(const std::string& message) {
  Finding finding{"LibTorch", Level::problem, message, ""};
  if (message.find("symbol lookup error") != std::string::npos ||
      message.find("undefined symbol") != std::string::npos)
    finding.advice =
        "a LibTorch of another version or C++ ABI is found first; build Drivetrain against this "
        "one, or set LD_LIBRARY_PATH to the one that it was built with";
  else if (message.find("version `") != std::string::npos)
    finding.advice =
        "a library found here is older than the one of the build; remove it from LD_LIBRARY_PATH, "
        "or build on the older system";
  else
    finding.advice =
        "the library is not where it was at the build; set LD_LIBRARY_PATH to its folder "
        "(LibTorch's "
        "lib), or build and install Drivetrain again";
  return finding;
}

const DeviceLibrary* library_of(const Case& patient, const DriverRow& row) {
  const auto& all = patient.facts.probe.libraries;
  const auto found = std::find_if(all.begin(), all.end(), [&](const DeviceLibrary& library) {
    return library.name == row.library;
  });
  return row.library.empty() || found == all.end() ? nullptr : &*found;
}

const BackendState* backend_of(const Case& patient, std::string_view name) {
  const auto& all = patient.facts.probe.backends;
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const BackendState& one) { return one.name == name; });
  return found == all.end() ? nullptr : &*found;
}

// "": the user has left all devices visible.
std::string hiding_variable(const Case& patient, const DriverRow& row) {
  for (const DriverRow& other : hardware::driver_rows()) {
    const std::string name(other.visible_devices);
    if (other.backend == row.backend && patient.facts.environment.contains(name)) return name;
  }
  return "";
}

std::string monitor_advice(const DriverRow& row) {
  return row.monitor.empty() ? "look at the kernel's log" : str("see what ", row.monitor, " says");
}

// The driver itself, whatever LibTorch makes of it. True if it is fit for use.
bool driver_is_fit(const DriverFound& driver, const std::string& name, Findings& findings) {
  const std::string vendor(driver.row->vendor);
  const auto add = [&](Level level, const std::string& found, const std::string& advice) {
    findings.push_back({name, level, found, advice});
    return false;
  };
  if (!driver.is_loaded && !driver.row->driver_path.empty())
    return add(Level::problem,
               str(driver.devices.front(), " is there, but no driver: ", driver.row->driver_path,
                   " is missing"),
               str("load the ", vendor, " driver, or share it with this container"));
  if (driver.devices.empty())
    return add(Level::warning,
               str("the ", vendor, " driver ", driver.version, " is loaded, but there is no ",
                   driver.row->device_prefix, "0"),
               "in a container, give it the devices (--gpus all, --device); else " +
                   monitor_advice(*driver.row));
  if (driver.refused.size() == driver.devices.size())
    return add(Level::problem, str(driver.devices.front(), " may not be opened by this user"),
               "join the group that owns it (ls -l shows it), or give the container the device");
  return true;
}

// "" where the list parses.
std::string list_problem(const std::string& variable, const std::string& value, size_t& count) {
  try {
    count = hardware::parse_visible_devices(variable, value).size();
    return "";
  } catch (const ConfigError& error) {
    return error.what_happened();
  }
}

// True where the variable hides all devices, or is wrong: then nothing else need be looked for.
bool hidden(const Case& patient, const DriverFound& driver, const std::string& name,
            Findings& findings) {
  const std::string variable = hiding_variable(patient, *driver.row);
  if (variable.empty()) return false;
  const std::string& value = patient.facts.environment.at(variable);
  size_t count = 0;
  const std::string problem = list_problem(variable, value, count);
  if (!problem.empty())
    findings.push_back({name, Level::problem, problem, str("correct or unset ", variable)});
  else if (count == 0)
    findings.push_back(
        {name, Level::warning,
         str(variable, " is \"", value, "\": it hides all ", driver.devices.size(), " devices"),
         str("unset ", variable, " to use them")});
  return !problem.empty() || count == 0;
}

void check_use(const Case& patient, const DriverFound& driver, const std::string& name,
               Findings& findings) {
  const DriverRow& row = *driver.row;
  const auto add = [&](Level level, const std::string& found, const std::string& advice) {
    findings.push_back({name, level, found, advice});
  };
  const DeviceLibrary* library = library_of(patient, row);
  const BackendState* backend = backend_of(patient, row.backend);
  const std::string runtime = backend == nullptr ? "" : backend->runtime_version;
  const auto needed = hardware::driver_needed(row, driver.version, std::atoi(runtime.c_str()));
  if (library != nullptr && !library->is_present)
    return add(
        Level::problem,
        str("there is a device of ", row.vendor, ", but LibTorch ", patient.facts.probe.version,
            " is a build without ", row.backend, " (no ", library->name, ")"),
        str("install the LibTorch build for ", row.backend, ", and build Drivetrain against it"));
  if (library != nullptr && !library->is_loaded)
    return add(Level::problem, str("LibTorch has ", library->name, ", but it is not linked"),
               "link the program to LibTorch's own target (find_package(Torch)), without "
               "-Wl,--as-needed for it");
  if (!needed.empty())
    return add(Level::problem,
               str("driver ", driver.version, " is older than what LibTorch's runtime ", runtime,
                   " needs: ", needed),
               str("install driver ", needed, " or newer, or a LibTorch for an older runtime"));
  if (backend == nullptr || !backend->reason.empty())
    return add(Level::problem,
               str(driver.devices.front(), " is there, but ", row.backend, " is not available: ",
                   backend == nullptr ? "it is not registered" : backend->reason,
                   quoted_lines(patient.facts.probe)),
               row.library.empty() ? str("load the plugin that registers ", row.backend)
                                   : monitor_advice(row));
  const bool all_seen =
      backend->devices >= driver.computing || !hiding_variable(patient, row).empty();
  add(all_seen ? Level::ok : Level::warning,
      str(backend->devices, " of ", std::max(backend->devices, driver.computing),
          " devices, driver ", driver.version.empty() ? "loaded" : driver.version,
          runtime.empty() ? "" : str(", runtime ", runtime)),
      all_seen ? "" : monitor_advice(row));
}

// LibTorch was built for devices that this machine does not have.
void check_missing_drivers(const Case& patient, Findings& findings) {
  for (const DriverRow& row : hardware::driver_rows()) {
    const DeviceLibrary* library = library_of(patient, row);
    const auto& found = patient.facts.drivers;
    const bool is_here = std::any_of(found.begin(), found.end(), [&](const DriverFound& driver) {
      return driver.row->backend == row.backend && driver.is_present();
    });
    if (library != nullptr && library->is_present && !is_here)
      findings.push_back(
          {str("driver of ", row.vendor), Level::warning,
           str("LibTorch is built for ", row.backend, ", but there is no driver (",
               row.driver_path.empty() ? row.device_prefix : row.driver_path, ") and no device"),
           "install the driver; without a device of this vendor, all is well"});
  }
}

}  // namespace

void check_probe(const Case& patient, Findings& findings) {
  const Probe& probe = patient.facts.probe;
  const auto add = [&](const std::string& found, const std::string& advice) {
    findings.push_back({"LibTorch", Level::problem, found, advice});
  };
  switch (probe.state) {
    case ProbeState::answered:
      return;
    case ProbeState::missing:
      return add(str("LibTorch cannot be asked: drivetrain-probe was ", probe.problem),
                 "install Drivetrain whole (cmake --install), or name it with --probe");
    case ProbeState::not_loaded:
      return findings.push_back(loader_finding(probe.problem));
    case ProbeState::crashed:
      return add(str("LibTorch or a driver crashed: ", probe.problem, quoted_lines(probe)),
                 "the last line says what was asked; repair or hide that device");
    case ProbeState::timed_out:
      return add(str("LibTorch or a driver hangs: ", probe.problem, quoted_lines(probe)),
                 "the last line says what was asked; look at the kernel's log, or hide that "
                 "device; on a slow file system, --timeout");
    case ProbeState::failed:
      if (!patient.facts.settings_problem.empty()) return;  // It ends for that, which is told.
      return add(str("drivetrain-probe failed: ", probe.problem, quoted_lines(probe)),
                 "install Drivetrain and its probe of one version");
  }
}

void check_libtorch(const Case& patient, Findings& findings) {
  const Probe& probe = patient.facts.probe;
  if (probe.state != ProbeState::answered) return;
  const auto minor = [](const std::string& version) {
    return version.substr(0, version.find('.', version.find('.') + 1));
  };
  const bool is_same = probe.version.empty() || minor(probe.version) == minor(probe.built_with);
  findings.push_back(
      {"LibTorch", is_same ? Level::ok : Level::problem,
       is_same ? str("LibTorch ", probe.version.empty() ? probe.built_with : probe.version)
               : str("LibTorch ", probe.version, " is loaded, but Drivetrain was built with ",
                     probe.built_with),
       is_same ? ""
               : "build Drivetrain against the one that is loaded, or correct LD_LIBRARY_PATH"});
}

void check_drivers(const Case& patient, Findings& findings) {
  const bool can_ask = patient.facts.probe.state == ProbeState::answered;
  for (const DriverFound& driver : patient.facts.drivers) {
    const std::string name = str("devices of ", driver.row->vendor);
    if (!driver.is_for_computing) {
      findings.push_back({name, Level::ok, "a graphics chip; not counted as an accelerator", ""});
      continue;
    }
    if (driver_is_fit(driver, name, findings) && !hidden(patient, driver, name, findings) &&
        can_ask)
      check_use(patient, driver, name, findings);
  }
  if (can_ask) check_missing_drivers(patient, findings);
  if (patient.facts.drivers.empty())
    findings.push_back(
        {"devices", Level::ok, "the kernel shows no accelerator and no driver of one", ""});
}

void check_detection(const Case& patient, Findings& findings) {
  const std::string& problem = patient.facts.probe.detection_problem;
  if (!problem.empty())
    findings.push_back(
        {"accelerator", Level::problem, problem, "correct or unset DRIVETRAIN_ACCELERATOR"});
}

void check_devices(const Case& patient, Findings& findings) {
  for (const BackendState& backend : patient.facts.probe.backends)
    for (const std::string& error : backend.device_errors)
      findings.push_back({str("devices of ", backend.name), Level::problem, error,
                          "repair the device, or hide it with the backend's variable"});
}

}  // namespace drivetrain::cli
