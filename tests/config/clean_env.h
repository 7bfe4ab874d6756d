// SPDX-License-Identifier: Apache-2.0
// An environment without any variable that the config room reads, and with the given ones, for the
// life of the object.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scoped_env.h"

#include <unistd.h>

namespace drivetrain {

class CleanEnv {
 public:
  explicit CleanEnv(const std::map<std::string, std::string>& variables = {}) {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string name(*entry, std::strcspn(*entry, "="));
      for (const char* prefix :
           {"DRIVETRAIN_", "ACCELERATE_", "OMPI_", "PMI", "MPI_", "MV2_", "SLURM_", "MASTER_",
            "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_"})
        if (name.starts_with(prefix)) names.push_back(name);
    }
    for (const std::string& name : names) unset(name);
    for (const auto& [name, value] : variables)
      scopes_.push_back(std::make_unique<ScopedEnv>(name, value.c_str()));
  }
  ~CleanEnv() {
    while (!scopes_.empty()) scopes_.pop_back();
  }
  CleanEnv(const CleanEnv&) = delete;
  CleanEnv& operator=(const CleanEnv&) = delete;

 private:
  void unset(const std::string& name) {
    scopes_.push_back(std::make_unique<ScopedEnv>(name, nullptr));
  }

  std::vector<std::unique_ptr<ScopedEnv>> scopes_;
};

}  // namespace drivetrain
