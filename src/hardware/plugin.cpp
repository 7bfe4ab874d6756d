// SPDX-License-Identifier: Apache-2.0
#include "hardware/plugin.h"

#include <drivetrain/error.h>

#include <filesystem>
#include <mutex>
#include <string>

#include "core/environment.h"
#include "core/text.h"

#include <dlfcn.h>

namespace drivetrain::hardware {
namespace {

// One row a library: it is wanted where the variable is set, or its accelerator asked for.
struct Plugin {
  const char* variable;
  const char* accelerator;
  const char* library;

  // The setting that asks for it, or "".
  std::string request() const {
    if (core::environment(variable)) return variable;
    const bool is_chosen = core::environment("DRIVETRAIN_ACCELERATOR") == accelerator;
    return is_chosen ? core::str("DRIVETRAIN_ACCELERATOR=", accelerator) : "";
  }
};

constexpr Plugin kPlugins[] = {{"DRIVETRAIN_SIM_DEVICES", "sim", "libdrivetrain_sim.so.0"}};
constexpr const char* kEntry = "drivetrain_load_plugin";

// The folder that this library was loaded from.
std::filesystem::path own_folder() {
  Dl_info info{};
  const void* inside = reinterpret_cast<const void*>(&load_plugins);
  if (dladdr(inside, &info) == 0 || info.dli_fname == nullptr) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

void load(const Plugin& plugin, const std::string& request) {
  const std::string beside = (own_folder() / plugin.library).string();
  void* library = dlopen(beside.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) library = dlopen(plugin.library, RTLD_NOW | RTLD_GLOBAL);
  const char* reason = library == nullptr ? dlerror() : nullptr;
  auto* entry = library == nullptr ? nullptr : reinterpret_cast<void (*)()>(dlsym(library, kEntry));
  if (entry == nullptr)
    throw ConfigError(core::str(
        "environment variable ", request, " asks for ", plugin.library,
        ", which cannot be loaded: ", reason != nullptr ? reason : "it is another library",
        "; allowed: where it is installed beside libdrivetrain or the loader "
        "finds it; install it or unset the variable"));
  entry();
}

}  // namespace

void load_plugins() {
  static std::mutex mutex;
  static bool done = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (done) return;
  for (const Plugin& plugin : kPlugins)
    if (const std::string request = plugin.request(); !request.empty()) load(plugin, request);
  done = true;
}

}  // namespace drivetrain::hardware
