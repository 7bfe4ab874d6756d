// SPDX-License-Identifier: Apache-2.0
#include "comm/state.h"

#include <c10/util/Exception.h>
#include <drivetrain/error.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "comm/agreement.h"
#include "comm/comm_backends.h"
#include "comm/failure.h"
#include "core/environment.h"
#include "core/invalid_argument.h"
#include "core/live_error.h"
#include "core/text.h"

namespace drivetrain::comm {

using core::str;
using namespace std::chrono_literals;

namespace {

// How long a collective may take before the others are looked at.
constexpr Milliseconds kPatience = 1000ms;
constexpr Milliseconds kLook = 250ms;

// How long a broken connection may stay unexplained.
constexpr Milliseconds kExplanation = 4000ms;

std::string what(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  return c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
}

Milliseconds until(Clock::time_point time) {
  return std::max(std::chrono::duration_cast<Milliseconds>(time - Clock::now()), 1ms);
}

}  // namespace

State::State(ProcessFacts facts, Config config)
    : facts_(std::move(facts)),
      config_(std::move(config)),
      exceptions_at_start_(std::uncaught_exceptions()) {
  if (facts_.world_size > 1) watch_for_terminate(this);
}

State::~State() {
  if (facts_.world_size == 1) return;
  unwatch_for_terminate(this);
  if (!connections_.watch) return;
  if (std::uncaught_exceptions() > exceptions_at_start_)
    fail(core::live_error().value_or("an exception ended its World"));
  leave();
}

// Others may still need this rank's part of what it has started, and its last words.
void State::leave() {
  const bool has_failed = !failure_.empty();
  const auto limit = std::min(config_.timeout, 5000ms);
  bool is_finished = courier_.is_idle_within(limit);
  for (Transport* transport : transports()) is_finished &= has_failed || transport->finish(limit);
  if (!has_failed && !is_finished) fail("it left during a collective");
  connections_.watch->end(Ending::left, "");
  if (connections_.serves_store) linger();
  courier_.stop();  // It uses what follows.
  device_transports_.clear();
  connections_.transport.reset();
  connections_.watch.reset();
  connections_.store.reset();
}

// How long the others may take to read what this rank said last. A launcher reads its error file,
// and ends them once it has ended.
Milliseconds State::last_look() const {
  if (failure_.empty()) return 5000ms;
  return core::environment("DRIVETRAIN_ERROR_FILE") ? 3 * kLook : 3000ms;
}

// The store that this process serves must outlive the other ranks' last look at it.
void State::linger() {
  const auto deadline = Clock::now() + last_look();
  for (Milliseconds pause = 1ms; Clock::now() < deadline; pause = std::min(pause * 2, 100ms)) {
    connections_.watch->refresh(until(deadline));
    if (connections_.watch->is_alone()) return;
    std::this_thread::sleep_for(pause);
  }
}

Transport& State::transport() {
  if (!courier_.is_idle_within(config_.timeout))
    raise(str("a device has not finished its work before a collective within ",
              seconds(config_.timeout), "; allowed: DRIVETRAIN_TIMEOUT; look at that device"));
  return *connections_.transport;
}

Transport::Started State::start_after(std::function<void()> ready,
                                      std::function<Transport::Started(Transport&)> start) {
  return courier_.start_after(std::move(ready), [this, start = std::move(start)] {
    return start(*connections_.transport);
  });
}

// Made on first use, on all ranks in the same collective.
Transport* State::transport_of(at::DeviceType type) {
  const auto found = device_transports_.find(type);
  if (found != device_transports_.end()) return found->second.get();
  auto made = make_device_transport(connections_.store, facts_, config_.timeout, type);
  return (device_transports_[type] = std::move(made)).get();
}

std::optional<Route> State::device_route(c10::ArrayRef<at::Tensor> tensors) {
  std::optional<at::Device> device;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (tensor.is_cpu() || (device && *device != tensor.device())) return std::nullopt;
    device = tensor.device();
  }
  if (!device) return std::nullopt;
  Transport* direct = transport_of(device->type());
  return direct != nullptr ? std::optional(Route{*device, *direct}) : std::nullopt;
}

Route State::route(c10::ArrayRef<at::Tensor> tensors) {
  const auto direct = device_route(tensors);
  return direct ? *direct : host_route();
}

std::vector<Transport*> State::transports() {
  std::vector<Transport*> all;
  if (connections_.transport) all.push_back(connections_.transport.get());
  for (const auto& [type, transport] : device_transports_)
    if (transport) all.push_back(transport.get());
  return all;
}

Position State::position() {
  std::lock_guard lock(mutex_);
  if (waiting_) return {last_.number, str("in ", describe(*waiting_))};
  if (last_.number == 0) return {0, "computing before its first collective"};
  return {last_.number, str("computing after ", describe(last_))};
}

Record State::begin(const Kind& kind, c10::ArrayRef<at::Tensor> tensors,
                    const CollectiveOptions& options) {
  Record record = make_record(kind, tensors);
  record.timeout = options.timeout.value_or(config_.timeout);
  record.start = Clock::now();
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty())
      throw CommError(str(kind.name, " in a world that has failed (", failure_,
                          "); allowed: a new World; make one, or end the program"));
    record.number = last_.number + 1;
    last_ = record;
  }
  if (config_.debug) agree(signature(kind, tensors), record);
  return record;
}

// Says where this rank is while it waits.
class State::Waiting {
 public:
  Waiting(State& state, const Record& record) : state_(state) { set(record); }
  ~Waiting() { set(std::nullopt); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  void set(const std::optional<Record>& record) {
    std::lock_guard lock(state_.mutex_);
    state_.waiting_ = record;
  }

  State& state_;
};

void State::await(Work& work, const Record& record) {
  await_slowly([&work](Milliseconds time) { return work.wait_for(time); }, record);
}

void State::await(const std::function<bool()>& is_done, const Record& record) {
  Milliseconds pause = 1ms;
  await_slowly(
      [&](Milliseconds time) {
        const auto stop = Clock::now() + time;
        while (!is_done()) {
          if (Clock::now() >= stop) return false;
          std::this_thread::sleep_for(std::min(pause, until(stop)));
          pause = std::min(pause * 2, 50ms);
        }
        return true;
      },
      record);
}

// Waits in slices: first with patience, then with an eye on the others.
void State::await_slowly(const std::function<bool(Milliseconds)>& is_done, const Record& record) {
  Waiting waiting(*this, record);
  const auto deadline = record.start + record.timeout;
  std::string broken;
  Clock::time_point broken_since;
  const auto wait_for = [&](Milliseconds time) {
    try {
      return is_done(std::min(time, until(deadline)));
    } catch (const std::exception& error) {
      broken = what(error);
      broken_since = Clock::now();
      return false;
    }
  };
  if (wait_for(kPatience)) return;
  while (true) {
    connections_.watch->refresh(kPatience);
    give_up_for_a_reason(record, broken);
    if (!broken.empty() && Clock::now() - broken_since > kExplanation)
      raise(str(describe(record), " failed: ", broken, "; ", connections_.watch->report()),
            /*blames_peer=*/true);
    if (Clock::now() >= deadline && broken.empty()) raise_timeout(record);
    if (!broken.empty())
      std::this_thread::sleep_for(kLook);
    else if (wait_for(kLook))
      return;
  }
}

void State::give_up_for_a_reason(const Record& record, const std::string& broken) {
  const auto verdict = connections_.watch->verdict(record.number, !broken.empty());
  if (!verdict) return;
  const std::string message =
      str(describe(record), " cannot complete: ", *verdict, "; ", connections_.watch->report(),
          "; all ranks must stay until the end: look at the first failure");
  end(message, Ending::stopped, *verdict, /*blames_peer=*/true);
  throw CommError(message);
}

void State::raise_timeout(const Record& record) {
  // Longer than a beat, so that what the others said is of now.
  std::this_thread::sleep_for(600ms);
  connections_.watch->refresh(kPatience);
  raise(str(describe(record), " took longer than its timeout of ", seconds(record.timeout), "; ",
            connections_.watch->cause({record.number, str("in ", describe(record))}), "; ",
            connections_.watch->report(),
            "; call the same collectives on every rank (DRIVETRAIN_DEBUG=1 compares the calls), or "
            "set a longer timeout (DRIVETRAIN_TIMEOUT, in seconds)"));
}

void State::agree(const std::string& signature, const Record& record) {
  Agreement agreement(connections_.store, facts_.rank, facts_.world_size, record.number);
  bool has_proposed = false;
  std::optional<std::string> mismatch;
  await(
      [&] {
        if (!has_proposed) agreement.propose(signature);
        has_proposed = true;
        if (!agreement.is_complete()) return false;
        mismatch = agreement.mismatch();
        return true;
      },
      record);
  if (mismatch)
    raise(str("the ranks called different collectives as number ", record.number, ": ", *mismatch,
              "; allowed: the same call on every rank, with equal shapes and types"));
}

void State::end(const std::string& message, Ending ending, const std::string& reason,
                bool blames_peer) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = message.empty() ? "no reason given" : message;
  }
  write_error_file(facts_.rank, message, position().text, blames_peer);
  // First the word, then the broken connections that make the others look for it.
  if (connections_.watch) connections_.watch->end(ending, reason);
  for (Transport* transport : transports()) transport->abort();
}

void State::fail(std::string_view reason) {
  end(std::string(reason), Ending::failed, std::string(reason));
}

void State::fail_and_linger(std::string_view reason) {
  fail(reason);
  if (connections_.serves_store) linger();
}

void State::raise(const std::string& message, bool blames_peer) {
  end(message, Ending::failed, message, blames_peer);
  throw CommError(message);
}

void State::require_root(const char* name, int root) const {
  if (root < 0 || root >= facts_.world_size)
    core::refuse("comm", str(name, " with root ", root, "; allowed: 0 to ", facts_.world_size - 1));
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
