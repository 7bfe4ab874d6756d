// SPDX-License-Identifier: Apache-2.0
#include "cli/env/probe.h"

#include <cstring>
#include <filesystem>
#include <tuple>
#include <utility>

#include <sys/wait.h>
#include <unistd.h>

#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;
using Json = nlohmann::ordered_json;

constexpr const char* kName = "drivetrain-probe";
constexpr const char* kStep = "drivetrain-probe: ";  // how it announces what it asks next
constexpr size_t kLastLines = 8;

// Beside the command, as in a build folder; where it is installed; "" if nowhere.
std::string find_probe(std::string& looked_at) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const char* folder : {"", DRIVETRAIN_LIBEXEC}) {
    const auto path = (self.parent_path() / folder / kName).lexically_normal();
    looked_at += str(looked_at.empty() ? "" : " and ", path.string());
    if (::access(path.c_str(), X_OK) == 0) return path.string();
  }
  return "";
}

std::vector<std::string> last_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::string& line : core::split(text, '\n'))
    if (!core::trim(line).empty()) lines.push_back(std::move(line));
  if (lines.size() > kLastLines) lines.erase(lines.begin(), lines.end() - kLastLines);
  return lines;
}

// What the dynamic loader says where it refuses; "" where it said nothing.
std::string loader_message(const std::vector<std::string>& lines) {
  for (const std::string& line : lines)
    for (const char* sign :
         {"error while loading shared libraries: ", "symbol lookup error: ", "version `"})
      if (const size_t at = line.find(sign); at != std::string::npos) return line.substr(at);
  return "";
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? str("signal ", signal) : str("SIG", name);
}

void read_backends(const Json& document, Probe& probe) {
  for (const Json& one : document.at("accelerators")) {
    BackendState backend;
    backend.name = one.at("name").get<std::string>();
    if (!one.at("available").get<bool>()) backend.reason = one.at("reason").get<std::string>();
    backend.runtime_version = one.at("runtime_version").get<std::string>();
    for (const Json& device : one.at("devices")) {
      ++backend.devices;
      for (const Json& error : device.at("errors"))
        backend.device_errors.push_back(
            str("device ", device.at("index").get<int>(), ": ", error.get<std::string>()));
    }
    probe.backends.push_back(std::move(backend));
  }
}

void read_document(const std::string& text, Probe& probe) {
  Json document = Json::parse(text);
  const Json& libtorch = document.at("libtorch");
  probe.version = libtorch.at("version").get<std::string>();
  probe.built_with = libtorch.at("built_with").get<std::string>();
  for (const Json& library : libtorch.at("device_libraries"))
    probe.libraries.push_back({library.at("name").get<std::string>(),
                               library.at("present").get<bool>(),
                               library.at("loaded").get<bool>()});
  probe.detection_problem = document.at("detection").at("problem").get<std::string>();
  read_backends(document, probe);
  probe.document = std::move(document);
}

std::pair<ProbeState, std::string> failure_of(const Finished& run, const Probe& probe,
                                              std::chrono::milliseconds limit) {
  if (!run.problem.empty())
    return {ProbeState::failed, str(probe.path, " could not be started: ", run.problem)};
  if (run.timed_out)
    return {ProbeState::timed_out,
            str("no answer within ", static_cast<double>(limit.count()) / 1000, " s")};
  if (WIFSIGNALED(run.status))
    return {ProbeState::crashed, str("ended by ", signal_name(WTERMSIG(run.status)))};
  if (std::string message = loader_message(probe.lines);
      !message.empty() && WEXITSTATUS(run.status) != 0)
    return {ProbeState::not_loaded, std::move(message)};
  if (WEXITSTATUS(run.status) != 0)
    return {ProbeState::failed, str("exit code ", WEXITSTATUS(run.status))};
  return {ProbeState::answered, ""};
}

}  // namespace

Probe read_probe(const std::string& path, const Finished& run, std::chrono::milliseconds limit) {
  Probe probe;
  probe.path = path;
  probe.seconds = run.seconds;
  probe.lines = last_lines(run.err);
  std::tie(probe.state, probe.problem) = failure_of(run, probe, limit);
  if (probe.state != ProbeState::answered) return probe;
  std::erase_if(probe.lines, [](const std::string& line) { return line.starts_with(kStep); });
  try {
    read_document(run.out, probe);
  } catch (const Json::exception& error) {
    probe.state = ProbeState::failed;
    probe.problem = str("its answer is not what this version writes: ", error.what());
  }
  return probe;
}

Probe ask_probe(std::string path, std::chrono::milliseconds limit) {
  std::string looked_at = path;
  if (path.empty())
    path = find_probe(looked_at);
  else if (::access(path.c_str(), X_OK) != 0)
    path.clear();
  if (!path.empty()) return read_probe(path, run_bounded({path}, limit), limit);
  Probe probe;
  probe.problem = str("not found or not executable: ", looked_at);
  return probe;
}

const char* name_of(ProbeState state) {
  switch (state) {
    case ProbeState::answered:
      return "answered";
    case ProbeState::missing:
      return "missing";
    case ProbeState::not_loaded:
      return "not loaded";
    case ProbeState::crashed:
      return "crashed";
    case ProbeState::failed:
      return "failed";
    case ProbeState::timed_out:
      return "timed out";
  }
  return "";
}

}  // namespace drivetrain::cli
