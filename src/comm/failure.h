// SPDX-License-Identifier: Apache-2.0
// How a failing rank leaves word: the file that the launcher reads, and the worlds to tell when the
// process is about to end by std::terminate.
#pragma once

#include <string_view>

namespace drivetrain::comm {

class State;

// Writes {"rank", "message", "collective", "time"} as JSON to the path in DRIVETRAIN_ERROR_FILE, if
// set: whole or not at all. time is in seconds since the epoch. With blames_peer also "peer": true:
// this rank stops because another one did. Never throws.
void write_error_file(int rank, std::string_view message, std::string_view collective,
                      bool blames_peer) noexcept;

// Worlds that std::terminate fails, with the message of the exception that nobody caught.
void watch_for_terminate(State* state);
void unwatch_for_terminate(State* state);

}  // namespace drivetrain::comm
