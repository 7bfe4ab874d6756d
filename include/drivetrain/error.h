// SPDX-License-Identifier: Apache-2.0
// The errors that Drivetrain throws (dataset.h adds SampleError). Every message has one shape:
//
//   [rank 3/8] room: what happened, with the value; what is allowed; what to do
//
// The rank is left out in a world of one. docs/errors.md says which a caller can recover from.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace drivetrain {

class Error : public std::runtime_error {
 public:
  // Builds "[rank r/w] room: message"; the rank is the one that the calling thread is known by.
  Error(std::string_view room, std::string_view message);

  // The message without the rank and the room.
  const std::string& what_happened() const noexcept { return *message_; }

 private:
  std::shared_ptr<const std::string> message_;
};

// A setting is wrong, unknown, or contradicts another. Nothing has been changed.
class ConfigError : public Error {
 public:
  explicit ConfigError(std::string_view message) : Error("config", message) {}
  using Error::Error;
};

// A device is absent, or was asked for something that it cannot do.
class HardwareError : public Error {
 public:
  explicit HardwareError(std::string_view message) : Error("hardware", message) {}
  using Error::Error;
};

// A peer is gone, late, or called something else. The world cannot be used any more.
class CommError : public Error {
 public:
  explicit CommError(std::string_view message) : Error("comm", message) {}
  using Error::Error;
};

// A file is missing, damaged, or does not fit what it is loaded into.
class CheckpointError : public Error {
 public:
  explicit CheckpointError(std::string_view message) : Error("checkpoint", message) {}
  using Error::Error;
};

}  // namespace drivetrain
