// SPDX-License-Identifier: Apache-2.0
#include "comm/address.h"

#include <drivetrain/error.h>

#include <array>

#include "expect_error.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

namespace drivetrain::comm {
namespace {

TEST(Address, IsLoopbackOnlyWhereRankZeroIs) {
  for (const char* loopback : {"127.0.0.1", "127.0.1.1", "localhost", "::1"})
    EXPECT_EQ(own_address(loopback, 29500, false), "127.0.0.1");
  // A datagram socket towards a documentation address takes the default route, if there is one.
  try {
    const std::string own = own_address("192.0.2.1", 29500, false);
    EXPECT_FALSE(own.starts_with("127."));
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("no address towards rank 0 at 192.0.2.1"));
  }
}

TEST(Address, NamesAnAddressThatDoesNotResolve) {
  EXPECT_ERROR(own_address("no-such-host.invalid", 29500, false), CommError,
               "MASTER_ADDR \"no-such-host.invalid\" has no address: ");
}

TEST(Address, TellsTheListeningPort) {
  const int fd = ::socket(AF_INET6, SOCK_STREAM, 0);
  if (fd < 0) GTEST_SKIP() << "this machine has no IPv6";
  EXPECT_ERROR(listening_port(fd), ConfigError,
               "DRIVETRAIN_STORE_FD is " + std::to_string(fd) + ", which is no listening socket");
  ASSERT_EQ(::listen(fd, 1), 0);
  sockaddr_in6 address{};
  socklen_t length = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  EXPECT_EQ(listening_port(fd), ntohs(address.sin6_port));
  ::close(fd);
  EXPECT_ERROR(listening_port(fd), ConfigError, "is no listening socket");
}

}  // namespace
}  // namespace drivetrain::comm
