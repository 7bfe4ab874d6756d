// SPDX-License-Identifier: Apache-2.0
// What LibTorch says of itself and of the devices. The command does not link LibTorch, so another
// program is asked, drivetrain-probe: it prints one JSON document, and a driver that hangs or
// crashes takes only that program down.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/env/bounded_run.h"

namespace drivetrain::cli {

enum class ProbeState {
  answered,
  missing,     // no such program
  not_loaded,  // the dynamic loader refused: a library is missing, or does not fit
  crashed,     // ended by a signal
  failed,      // another exit code, or no document
  timed_out,
};

// LibTorch's library for one kind of device.
struct DeviceLibrary {
  std::string name;         // "libtorch_cuda.so"
  bool is_present = false;  // it lies beside LibTorch's others
  bool is_loaded = false;   // linking has brought it in
};

struct BackendState {
  std::string name;
  std::string reason;  // why it is unavailable; "" if it is not
  int devices = 0;
  std::string runtime_version;  // "12.8"
  std::vector<std::string> device_errors;
};

struct Probe {
  ProbeState state = ProbeState::missing;
  std::string path;
  std::string problem;  // "" where it answered
  // The last ones on its standard error; where it answered, what libraries said there.
  std::vector<std::string> lines;
  double seconds = 0;
  nlohmann::ordered_json document;  // null where it did not answer

  // Out of the document.
  std::string version, built_with;  // of LibTorch: the one that runs, the one of the headers
  std::string detection_problem;    // "" where detection chose an accelerator
  std::vector<DeviceLibrary> libraries;
  std::vector<BackendState> backends;
};

// `path`: of the program; "" looks beside the command and in its libexec folder.
Probe ask_probe(std::string path, std::chrono::milliseconds limit);

// What a run of it means.
Probe read_probe(const std::string& path, const Finished& run, std::chrono::milliseconds limit);

const char* name_of(ProbeState state);

}  // namespace drivetrain::cli
