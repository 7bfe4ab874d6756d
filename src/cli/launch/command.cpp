// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/command.h"

#include <algorithm>
#include <cctype>

#include <sys/stat.h>
#include <unistd.h>

#include "core/environment.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;

enum class Kind { absent, directory, unreadable, executable };

Kind kind_of(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return Kind::absent;
  if (S_ISDIR(status.st_mode)) return Kind::directory;
  return ::access(path.c_str(), X_OK) == 0 ? Kind::executable : Kind::unreadable;
}

FoundProgram take(const std::string& path) {
  switch (kind_of(path)) {
    case Kind::executable:
      return {path, "", 0};
    case Kind::directory:
      return {"", str(path, " is a directory; allowed: a program; give the file in it"), 126};
    case Kind::unreadable:
      return {"", str(path, " is not executable; allowed: a program; try chmod +x ", path), 126};
    case Kind::absent:
      break;
  }
  return {"", str(path, " does not exist; allowed: a program; build it, or correct the path"), 127};
}

}  // namespace

FoundProgram find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return take(name);
  FoundProgram problem = {
      "", str(name, " was not found in PATH; allowed: a program in PATH, or a path to one"), 127};
  if (kind_of("./" + name) == Kind::executable) problem.problem += str("; try ./", name);
  for (const std::string& folder :
       core::split(core::environment("PATH").value_or("/usr/local/bin:/usr/bin:/bin"), ':')) {
    const FoundProgram here = take(str(folder.empty() ? "." : folder, "/", name));
    if (!here.path.empty()) return here;
    if (here.exit_code == 126 && kind_of(str(folder, "/", name)) == Kind::unreadable)
      problem = here;
  }
  return problem;
}

std::string shell_quoted(const std::string& argument) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-+=./,:@%").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!argument.empty() && std::all_of(argument.begin(), argument.end(), plain)) return argument;
  std::string out = "'";
  for (const char c : argument) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace drivetrain::cli
