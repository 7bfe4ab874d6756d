// SPDX-License-Identifier: Apache-2.0
// What ProcessGroupGloo.hpp needs of gloo: LibTorch's wheel ships c10d's headers and gloo's code,
// but not gloo's headers. Only declarations of what is never constructed, or only called through
// exported functions, by this library; cmake/GlooShim.cmake checks that they fit the LibTorch
// found.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  // Ends every operation under way with an error.
  void closeConnections();
};

namespace transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = default;
};

}  // namespace transport

namespace rendezvous {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace rendezvous
}  // namespace gloo
