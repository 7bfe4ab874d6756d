// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/port.h"

#include <drivetrain/error.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/text.h"

namespace drivetrain::cli {
namespace {

using core::str;

constexpr int kBacklog = 4096;

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Every address: IPv6 first, whose socket takes IPv4 too.
Addresses resolve(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_family = address.empty() ? AF_INET6 : AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.empty() ? nullptr : address.c_str(),
                                  std::to_string(port).c_str(), &hints, &found);
  if (error != 0)
    throw CommError(str("address \"", address, "\" is unknown: ", ::gai_strerror(error),
                        "; allowed: a name or address of this machine; correct --main-process-ip"));
  return {found, ::freeaddrinfo};
}

Fd try_listen(const sockaddr* address, socklen_t size) {
  Fd socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return Fd();
  const int on = 1;
  const int off = 0;
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address->sa_family == AF_INET6)
    (void)::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(socket.get(), address, size) != 0 || ::listen(socket.get(), kBacklog) != 0)
    return Fd();
  return socket;
}

Fd try_listen_on_any_ipv4(int port) {
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<uint16_t>(port));
  return try_listen(reinterpret_cast<const sockaddr*>(&any), sizeof any);
}

int port_of(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  const bool six = address.ss_family == AF_INET6;
  return ntohs(six ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

[[noreturn]] void refuse(const std::string& address, int port, int error) {
  const std::string where = address.empty() ? "this machine" : address;
  if (error == EADDRINUSE)
    throw CommError(str("port ", port, " of ", where,
                        " is in use; allowed: a free one; choose "
                        "another --main-process-port, or 0 on one machine"));
  throw CommError(str("cannot listen on ", where, " port ", port, ": ", std::strerror(error),
                      "; allowed: an address of this machine and a port it may use; correct "
                      "--main-process-ip or --main-process-port"));
}

}  // namespace

ListeningPort listen_on(const std::string& address, int port) {
  int error = 0;
  Fd socket;
  const Addresses addresses = resolve(address, port);
  for (const addrinfo* a = addresses.get(); a != nullptr && !socket; a = a->ai_next) {
    socket = try_listen(a->ai_addr, a->ai_addrlen);
    if (!socket) error = errno;
  }
  // A machine without IPv6.
  if (!socket && address.empty() && error != EADDRINUSE) socket = try_listen_on_any_ipv4(port);
  if (!socket) refuse(address, port, error);
  const int bound = port_of(socket);
  return {std::move(socket), bound};
}

void drop_waiting_connections(const Fd& socket) {
  pollfd waiting = {socket.get(), POLLIN, 0};
  while (::poll(&waiting, 1, 0) > 0) Fd(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

}  // namespace drivetrain::cli
