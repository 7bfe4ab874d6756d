// SPDX-License-Identifier: Apache-2.0
// The listening socket of rank 0's store, and the file descriptors of this room.
#pragma once

#include <string>
#include <utility>

namespace drivetrain::cli {

// An owned file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

struct ListeningPort {
  Fd socket;  // bound and listening, closed on exec
  int port = 0;
};

// On `address` alone, or on every address of this machine where it is empty. Port 0: a free one.
// Since the socket is never closed before rank 0 has it, nobody else can take the port.
// Throws CommError if the port is in use or the address is not this machine's.
ListeningPort listen_on(const std::string& address, int port);

// Accepts and closes what waits on the socket: connections of ranks that are gone.
void drop_waiting_connections(const Fd& socket);

}  // namespace drivetrain::cli
