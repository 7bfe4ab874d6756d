// SPDX-License-Identifier: Apache-2.0
// Entry points of vendors' libraries, found at run time and without their headers: only those that
// are stable parts of the library's ABI.
#pragma once

#include <initializer_list>

#include <dlfcn.h>

namespace drivetrain::hardware {

class VendorLibrary {
 public:
  // The first of `names` that the loader finds; nothing where it finds none. Never closed: its
  // threads and handlers may outlive whoever asked.
  explicit VendorLibrary(std::initializer_list<const char*> names, int flags = RTLD_LAZY) {
    for (const char* name : names)
      if (handle_ == nullptr) handle_ = dlopen(name, flags | RTLD_LOCAL);
  }

  bool is_loaded() const { return handle_ != nullptr; }
  void* handle() const { return handle_; }

  // Sets `function`, a pointer to a function of the right type; null where there is none.
  template <class Function>
  bool find(const char* name, Function*& function) const {
    function = handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle_, name));
    return function != nullptr;
  }

 private:
  void* handle_ = nullptr;
};

}  // namespace drivetrain::hardware
