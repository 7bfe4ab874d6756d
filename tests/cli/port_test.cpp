// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/port.h"

#include <drivetrain/error.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "core/text.h"
#include "expect_error.h"

namespace drivetrain::cli {
namespace {

bool connects(const Fd& client, const char* address, int port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, address, &to.sin_addr);
  return ::connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
}

Fd new_client() { return Fd(::socket(AF_INET, SOCK_STREAM, 0)); }

TEST(Port, ZeroIsAFreeOneThatListens) {
  const ListeningPort first = listen_on("127.0.0.1", 0);
  const ListeningPort second = listen_on("127.0.0.1", 0);
  EXPECT_GT(first.port, 0);
  EXPECT_NE(first.port, second.port);
  EXPECT_TRUE(connects(new_client(), "127.0.0.1", first.port));
  EXPECT_NE(::fcntl(first.socket.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Port, OnEveryAddressTakesIPv4Too) {
  const ListeningPort port = listen_on("", 0);
  EXPECT_TRUE(connects(new_client(), "127.0.0.1", port.port));
}

TEST(Port, TakenOnesAndForeignAddressesAreRefused) {
  const ListeningPort held = listen_on("127.0.0.1", 0);
  EXPECT_ERROR(listen_on("127.0.0.1", held.port), CommError,
               core::str("port ", held.port, " of 127.0.0.1 is in use; allowed: a free one"));
  EXPECT_ERROR(listen_on("", held.port), CommError, "of this machine is in use");
  EXPECT_ERROR(listen_on("192.0.2.1", 0), CommError, "cannot listen on 192.0.2.1 port 0: Cannot");
  EXPECT_ERROR(listen_on("no.such.host.invalid", 0), CommError,
               "address \"no.such.host.invalid\" is unknown");
}

TEST(Port, ConnectionsOfTheDeadAreDropped) {
  const ListeningPort port = listen_on("127.0.0.1", 0);
  const Fd stale = new_client();
  ASSERT_TRUE(connects(stale, "127.0.0.1", port.port));
  drop_waiting_connections(port.socket);
  pollfd waiting = {port.socket.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&waiting, 1, 0), 0);
  char byte = 0;
  EXPECT_EQ(::recv(stale.get(), &byte, 1, 0), 0);               // told that nobody is there
  EXPECT_TRUE(connects(new_client(), "127.0.0.1", port.port));  // and the port is still ours
}

}  // namespace
}  // namespace drivetrain::cli
