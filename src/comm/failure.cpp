// SPDX-License-Identifier: Apache-2.0
#include "comm/failure.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/state.h"
#include "core/environment.h"
#include "core/text.h"

#include <unistd.h>

namespace drivetrain::comm {
namespace {

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Never destroyed: std::terminate may come after static destructors.
struct Worlds {
  std::timed_mutex mutex;
  std::vector<State*> states;
  std::terminate_handler previous = nullptr;
};

Worlds& worlds() {
  static auto* const all = new Worlds;
  return *all;
}

std::string message_of_current_exception() {
  try {
    if (const auto current = std::current_exception()) std::rethrow_exception(current);
    return "std::terminate was called";
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {  // Reported as what it is; the process ends after this.
    return "an exception that is not a std::exception was thrown";
  }
}

// Tells every world. Bounded: the thread that holds the lock may be the one that terminates.
void tell(const std::string& message) {
  Worlds& all = worlds();
  if (!all.mutex.try_lock_for(std::chrono::seconds(1))) return;
  for (State* state : all.states) state->fail_and_linger(message);
  all.mutex.unlock();
}

// On another thread and bounded: the one that terminates may be Gloo's own and hold a lock of it,
// without which a world cannot be told.
[[noreturn]] void on_terminate() {
  std::packaged_task<void()> telling([message = message_of_current_exception()] { tell(message); });
  const std::future<void> told = telling.get_future();
  std::thread(std::move(telling)).detach();
  told.wait_for(std::chrono::seconds(5));
  if (const auto previous = worlds().previous) previous();
  std::abort();
}

}  // namespace

void write_error_file(int rank, std::string_view message, std::string_view collective,
                      bool blames_peer) noexcept {
  try {
    const auto path = core::environment("DRIVETRAIN_ERROR_FILE");
    if (!path) return;
    const std::string unfinished = core::str(*path, ".", ::getpid(), ".unfinished");
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    {
      std::ofstream file(unfinished);
      file << "{\"rank\": " << rank << ", \"message\": " << json_string(message)
           << ", \"collective\": " << json_string(collective)
           << ", \"time\": " << std::chrono::duration_cast<std::chrono::seconds>(now).count()
           << (blames_peer ? ", \"peer\": true" : "") << "}\n";
      if (!file.flush()) return;
    }
    std::rename(unfinished.c_str(), path->c_str());
  } catch (const std::exception& error) {
    // The error being reported matters more than the file that repeats it.
    std::fprintf(stderr, "drivetrain: the error file could not be written: %s\n", error.what());
  }
}

void watch_for_terminate(State* state) {
  Worlds& all = worlds();
  std::lock_guard lock(all.mutex);
  all.states.push_back(state);
  static const bool installed = [&all] {
    all.previous = std::set_terminate(on_terminate);
    return true;
  }();
  static_cast<void>(installed);
}

void unwatch_for_terminate(State* state) {
  Worlds& all = worlds();
  std::lock_guard lock(all.mutex);
  std::erase(all.states, state);
}

}  // namespace drivetrain::comm
