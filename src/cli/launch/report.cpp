// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/report.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include <sys/wait.h>

#include "core/file.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;
using nlohmann::json;

// Lower is to blame rather.
int blame_class(const RankOutcome& outcome) {
  if (outcome.error && outcome.error->blames_peer) return 1;
  const bool failed_by_itself = outcome.error || !outcome.was_ended;
  return failed_by_itself ? 0 : 2;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) out += str(i == 0 ? "" : ", ", ranks[i]);
  return out;
}

template <class Predicate>
std::vector<int> ranks_where(const std::vector<RankOutcome>& outcomes, Predicate predicate) {
  std::vector<int> ranks;
  for (const RankOutcome& outcome : outcomes)
    if (predicate(outcome)) ranks.push_back(outcome.rank);
  return ranks;
}

std::string how_it_failed(const RankOutcome& outcome) {
  if (!outcome.exec_problem.empty()) return str("could not be run: ", outcome.exec_problem);
  const bool is_killed_from_outside =
      WIFSIGNALED(outcome.status) && !outcome.was_ended && WTERMSIG(outcome.status) == SIGKILL;
  return str(
      "failed: ", describe(outcome.status),
      is_killed_from_outside ? "; the kernel sends it where memory has run out: see dmesg" : "");
}

json json_of(const RankOutcome& outcome, bool is_first) {
  const bool by_signal = WIFSIGNALED(outcome.status);
  json entry = {
      {"rank", outcome.rank},
      {"pid", outcome.pid},
      {"outcome", outcome.status == 0              ? "succeeded"
                  : is_first || !outcome.was_ended ? "failed"
                                                   : "ended"},
      {"exit_code", by_signal ? json() : json(WEXITSTATUS(outcome.status))},
      {"signal", by_signal ? json(str("SIG", ::sigabbrev_np(WTERMSIG(outcome.status)))) : json()},
      {"killed", outcome.was_killed},
      {"stderr", outcome.last_lines}};
  if (!outcome.exec_problem.empty()) entry["problem"] = outcome.exec_problem;
  if (outcome.error)
    entry["error"] = {{"message", outcome.error->message},
                      {"collective", outcome.error->collective},
                      {"time", outcome.error->time},
                      {"blames_peer", outcome.error->blames_peer}};
  return entry;
}

}  // namespace

std::optional<ErrorRecord> read_error_record(const std::string& path) {
  std::ifstream file(path);
  const json record = json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) return std::nullopt;
  const auto text = [&](const char* key) {
    const auto found = record.find(key);
    return found != record.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  ErrorRecord error{text("message"), text("collective"), 0, false};
  if (const auto time = record.find("time"); time != record.end() && time->is_number())
    error.time = time->get<double>();
  const auto peer = record.find("peer");
  error.blames_peer = (peer != record.end() && !peer->is_null()) ||
                      error.message.find("peer failed") != std::string::npos;
  return error;
}

int exit_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string describe(int status) {
  if (!WIFSIGNALED(status)) return str("exit code ", WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  const char* name = ::sigabbrev_np(signal);
  if (name == nullptr) return str("signal ", signal);
  return str("signal ", signal, " (SIG", name, ": ", ::sigdescr_np(signal), ")",
             WCOREDUMP(status) ? ", core dumped" : "");
}

std::optional<size_t> first_failure(const std::vector<RankOutcome>& outcomes) {
  std::optional<size_t> first;
  const auto key = [&](size_t i) {
    return std::tuple(blame_class(outcomes[i]), outcomes[i].order);
  };
  for (size_t i = 0; i < outcomes.size(); ++i)
    if (outcomes[i].status != 0 && (!first || key(i) < key(*first))) first = i;
  return first;
}

std::string failure_text(const std::vector<RankOutcome>& outcomes, size_t first) {
  const RankOutcome& blamed = outcomes[first];
  std::string out = str("rank ", blamed.rank, " (pid ", blamed.pid, ") ", how_it_failed(blamed));
  if (!blamed.last_lines.empty()) out += "\n  the last lines of its standard error:";
  for (const std::string& line : blamed.last_lines) out += "\n    | " + line;
  if (blamed.error && !blamed.error->collective.empty())
    out += str("\n  it was in: ", blamed.error->collective);
  if (blamed.error) out += str("\n  error: ", blamed.error->message);
  const auto others = [&](const RankOutcome& o) { return o.rank != blamed.rank && o.status != 0; };
  const auto done =
      ranks_where(outcomes, [&](const auto& o) { return o.status == 0 && o.order < blamed.order; });
  const auto failed =
      ranks_where(outcomes, [&](const auto& o) { return others(o) && !o.was_ended; });
  const auto ended = ranks_where(outcomes, [&](const auto& o) { return others(o) && o.was_ended; });
  const auto killed =
      ranks_where(outcomes, [&](const auto& o) { return others(o) && o.was_killed; });
  if (!done.empty()) out += str("\n  ended before it, with exit code 0: ", ranks_text(done));
  if (!failed.empty()) out += str("\n  failed after it: ", ranks_text(failed));
  if (!ended.empty()) out += str("\n  ended because of it: ", ranks_text(ended));
  if (!killed.empty()) out += str("\n  killed after the grace period: ", ranks_text(killed));
  return out;
}

std::string write_error_file(const std::string& path, const std::vector<RankOutcome>& outcomes,
                             size_t first, const LaunchFacts& facts) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  json ranks = json::array();
  for (size_t i = 0; i < outcomes.size(); ++i) ranks.push_back(json_of(outcomes[i], i == first));
  const json report = {{"run_id", facts.run_id},
                       {"command", facts.command},
                       {"exit_code", facts.exit_code},
                       {"restarts", facts.restarts},
                       {"time", std::chrono::duration<double>(now).count()},
                       {"first_failure", json_of(outcomes[first], true)},
                       {"ranks", ranks}};
  // Output of a program need not be UTF-8.
  const std::string text = report.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  const std::string reason = core::write_file(path, text);
  return reason.empty() ? "" : str("cannot write error file ", path, ": ", reason);
}

}  // namespace drivetrain::cli
