// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/network.h"

#include <drivetrain/error.h>

#include <array>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include <netdb.h>
#include <sys/socket.h>

#include "cli/launch/port.h"
#include "core/text.h"

namespace drivetrain::cli {
namespace {

std::string address_text(const addrinfo& address) {
  std::array<char, NI_MAXHOST> text{};
  const int error = ::getnameinfo(address.ai_addr, address.ai_addrlen, text.data(), text.size(),
                                  nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : "";
}

Lookup resolve(const std::string& name) {
  Lookup lookup;
  lookup.name = name;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    lookup.problem = ::gai_strerror(error);
    return lookup;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next)
    lookup.addresses.push_back(address_text(*one));
  return lookup;
}

}  // namespace

Lookup look_up(const std::string& name, std::chrono::milliseconds limit) {
  const auto begin = std::chrono::steady_clock::now();
  auto promise = std::make_shared<std::promise<Lookup>>();
  auto answer = promise->get_future();
  // Left behind where the name server does not answer: nothing can interrupt getaddrinfo.
  std::thread([promise, name] { promise->set_value(resolve(name)); }).detach();
  Lookup lookup;
  if (answer.wait_for(limit) == std::future_status::ready) {
    lookup = answer.get();
  } else {
    lookup.name = name;
    lookup.problem =
        core::str("no answer within ", static_cast<double>(limit.count()) / 1000, " s");
  }
  lookup.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return lookup;
}

StorePort try_port(int port) {
  StorePort result;
  result.port = port;
  try {
    (void)listen_on("", port);
  } catch (const Error& error) {
    result.problem = error.what_happened().substr(0, error.what_happened().find(';'));
  }
  return result;
}

}  // namespace drivetrain::cli
