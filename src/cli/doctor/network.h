// SPDX-License-Identifier: Apache-2.0
// What has to be asked of the network, or tried out, to know whether ranks can meet.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace drivetrain::cli {

struct Lookup {
  std::string name;
  std::vector<std::string> addresses;
  std::string problem;  // "" where it has addresses
  double seconds = 0;
};

// The addresses of `name`. **Blocks.** for `limit` at most.
Lookup look_up(const std::string& name, std::chrono::milliseconds limit);

struct StorePort {
  int port = 0;
  std::string problem;  // why it cannot be listened on; "" if it can
};

StorePort try_port(int port);

struct Network {
  std::optional<Lookup> hostname;
  std::optional<Lookup> main_address;   // MASTER_ADDR, where it is set
  std::optional<StorePort> store_port;  // where a port is known
};

}  // namespace drivetrain::cli
