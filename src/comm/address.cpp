// SPDX-License-Identifier: Apache-2.0
#include "comm/address.h"

#include <drivetrain/error.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "core/text.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace drivetrain::comm {

using core::str;

namespace {

std::string text_of(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST];
  const int error = ::getnameinfo(address, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? host : "";
}

bool is_loopback(const std::string& address) {
  return address.rfind("127.", 0) == 0 || address == "::1" || address == "localhost";
}

// Connecting a datagram socket sends nothing, but chooses the way and so our own address.
std::string address_towards(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0)
    throw CommError(str("MASTER_ADDR \"", host, "\" has no address: ", ::gai_strerror(error),
                        "; allowed: a name or address that every machine can resolve; correct it"));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::string own;
  for (const addrinfo* next = found; next != nullptr && own.empty(); next = next->ai_next) {
    const int fd = ::socket(next->ai_family, next->ai_socktype | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    if (::connect(fd, next->ai_addr, next->ai_addrlen) == 0 &&
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0)
      own = text_of(reinterpret_cast<sockaddr*>(&address), length);
    ::close(fd);
  }
  return own;
}

// The first IPv4 address of an interface that is up and not loopback.
std::string first_outside_address() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, ::freeifaddrs);
  for (const ifaddrs* next = all; next != nullptr; next = next->ifa_next) {
    const bool is_candidate = next->ifa_addr != nullptr && next->ifa_addr->sa_family == AF_INET &&
                              (next->ifa_flags & IFF_UP) != 0 &&
                              (next->ifa_flags & IFF_LOOPBACK) == 0;
    if (is_candidate) return text_of(next->ifa_addr, sizeof(sockaddr_in));
  }
  return "";
}

}  // namespace

std::string own_address(const std::string& main_address, int main_port, bool is_one_machine) {
  if (is_loopback(main_address)) return "127.0.0.1";
  std::string own = address_towards(main_address, main_port);
  // Debian resolves a machine's own name to 127.0.1.1, which no other machine can reach.
  if (is_loopback(own) && !is_one_machine) own = first_outside_address();
  if (own.empty())
    throw CommError(str("this machine has no address towards rank 0 at ", main_address,
                        "; allowed: an interface that reaches it; name one in GLOO_SOCKET_IFNAME"));
  return own;
}

int listening_port(int descriptor) {
  int is_listening = 0;
  socklen_t length = sizeof is_listening;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &length) != 0 ||
      is_listening == 0)
    throw ConfigError(str("DRIVETRAIN_STORE_FD is ", descriptor,
                          ", which is no listening socket; allowed: the socket that the launcher "
                          "listens on; start the program with `drivetrain launch` or unset it"));
  sockaddr_storage address{};
  length = sizeof address;
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length);
  const bool is_v6 = address.ss_family == AF_INET6;
  return ntohs(is_v6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                     : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace drivetrain::comm
