// SPDX-License-Identifier: Apache-2.0
#include "cli/env/command_line.h"

#include <drivetrain/error.h>

#include <algorithm>

#include "core/environment.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;

[[noreturn]] void refuse(const CLI::App& app, const std::string& argument) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  const std::string near = core::nearest(argument, names);
  throw ConfigError(str("unknown argument ", argument,
                        near.empty() ? "" : "; did you mean " + near + "?",
                        "; allowed: ", core::join(names), "; see ", app.get_name(), " --help"));
}

}  // namespace

std::chrono::milliseconds ProbeOptions::limit() const {
  const double seconds = core::parse_double("--timeout", timeout, 0.1, 3600);
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

void declare(CLI::App& app, ProbeOptions& options) {
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_help_flag("-h,--help", "Print this help");
  app.add_flag("--json", options.json, "Print one JSON object");
  app.add_option("--probe", options.probe,
                 "The program that asks LibTorch. Default: the drivetrain-probe that was installed "
                 "with this command")
      ->type_name("FILE");
  app.add_option("--timeout", options.timeout,
                 "How long LibTorch and the drivers may take to answer. Default: 30")
      ->type_name("SECONDS");
}

bool parse(CLI::App& app, const std::vector<std::string>& arguments, std::ostream& out) {
  app.allow_extras();
  try {
    std::vector<std::string> backwards(arguments.rbegin(),
                                       arguments.rend());  // as CLI11 takes them
    app.parse(backwards);
  } catch (const CLI::CallForHelp&) {
    out << app.help();
    return false;
  } catch (const CLI::ParseError& error) {
    throw ConfigError(str(error.what(), "; see ", app.get_name(), " --help"));
  }
  if (!app.remaining().empty()) refuse(app, app.remaining().front());
  return true;
}

}  // namespace drivetrain::cli
