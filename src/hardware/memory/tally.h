// SPDX-License-Identifier: Apache-2.0
// The bytes of tensors on one device, each storage once.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <vector>

namespace drivetrain::hardware {

class Tally {
 public:
  // `expected`: how many tensors there may be.
  Tally(c10::Device device, size_t expected) : device_(device) { seen_.reserve(expected); }

  // Bytes of the storages of `tensor` that are on the device and were not seen before. Undefined
  // tensors have none; a sparse one has those of its indices and values.
  int64_t add(const at::Tensor& tensor);

  // Bytes seen on other devices, each storage once.
  int64_t elsewhere() const { return elsewhere_; }

  // With `keep` each storage counted is kept in storages().
  void keep_storages() { keep_ = true; }
  const std::vector<c10::Storage>& storages() const { return storages_; }

 private:
  int64_t add_storage(const c10::Storage& storage);

  c10::Device device_;
  bool keep_ = false;
  int64_t elsewhere_ = 0;
  ska::flat_hash_set<const c10::StorageImpl*> seen_;
  std::vector<c10::Storage> storages_;
};

}  // namespace drivetrain::hardware
