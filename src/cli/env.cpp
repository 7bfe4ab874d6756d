// SPDX-License-Identifier: Apache-2.0
// `drivetrain env`: everything known of this machine and installation.
#include <iostream>

#include "cli/env/command_line.h"
#include "cli/env/facts.h"
#include "cli/subcommand.h"

namespace drivetrain::cli {

int env(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Prints what is known of this machine and installation, with or without LibTorch. Paste it "
      "into a report of a fault.",
      "drivetrain env");
  ProbeOptions options;
  declare(app, options);
  if (!parse(app, arguments, std::cout)) return 0;
  const auto sections = to_json(collect_facts(options.probe, options.limit()));
  // Bytes that are no UTF-8 (a variable may hold any) are replaced, not refused.
  constexpr auto replace = nlohmann::ordered_json::error_handler_t::replace;
  std::cout << (options.json ? sections.dump(2, ' ', false, replace) + "\n" : to_text(sections));
  return 0;
}

}  // namespace drivetrain::cli
