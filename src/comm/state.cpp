// SPDX-License-Identifier: Apache-2.0
#include "comm/state.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <drivetrain/error.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/text.h"

namespace drivetrain::comm {

using core::str;

std::string describe(const Record& record) {
  std::string text = str(record.name, " #", record.number);
  if (record.num_tensors == 0) return text;
  text += str(" of ", c10::toString(record.dtype), "[");
  const int64_t shown = std::min<int64_t>(record.num_dims, record.shape.size());
  for (int64_t i = 0; i < shown; ++i) text += str(i > 0 ? ", " : "", record.shape[i]);
  text += record.num_dims > shown ? ", ...]" : "]";
  if (record.num_tensors > 1) text += str(" and ", record.num_tensors - 1, " more");
  return text;
}

State::State(ProcessFacts facts, Config config, std::unique_ptr<Transport> transport)
    : facts_(std::move(facts)), config_(std::move(config)), transport_(std::move(transport)) {}

State::~State() = default;

Record State::begin(const char* name, c10::ArrayRef<at::Tensor> tensors,
                    const CollectiveOptions& options) {
  Record record;
  record.name = name;
  record.num_tensors = static_cast<int64_t>(tensors.size());
  if (!tensors.empty() && tensors[0].defined()) {
    record.dtype = tensors[0].scalar_type();
    record.num_dims = tensors[0].dim();
    const auto sizes = tensors[0].sizes();
    for (size_t i = 0; i < sizes.size() && i < record.shape.size(); ++i) record.shape[i] = sizes[i];
  }
  record.timeout = options.timeout.value_or(config_.timeout);
  record.start = std::chrono::steady_clock::now();
  std::lock_guard lock(mutex_);
  if (!failure_.empty())
    throw CommError(str(name, " in a world that has failed: ", failure_, "; make another World"));
  record.number = ++number_;
  return record;
}

void State::await(Work& work, const Record& record) {
  try {
    if (work.wait_for(record.timeout)) return;
  } catch (const c10::Error& error) {
    raise(str(describe(record), " failed: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    raise(str(describe(record), " failed: ", error.what()));
  }
  raise(str(describe(record), " took longer than ", record.timeout.count(), " ms"));
}

void State::fail(std::string_view reason) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = reason;
  }
  if (transport_) transport_->abort();
}

void State::raise(const std::string& message) {
  fail(message);
  throw CommError(message);
}

void State::require_root(const char* name, int root) const {
  if (root < 0 || root >= facts_.world_size)
    throw std::invalid_argument(
        str(name, " with root ", root, "; allowed: 0 to ", facts_.world_size - 1));
}

void Call::wait() {
  std::lock_guard lock(mutex_);
  if (!work_) return;
  state_->await(*work_, record_);
  work_.reset();
  if (finish_) finish_();
}

bool Call::done() {
  std::lock_guard lock(mutex_);
  return !work_ || work_->done();
}

}  // namespace drivetrain::comm
