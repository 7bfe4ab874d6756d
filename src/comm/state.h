// SPDX-License-Identifier: Apache-2.0
// What the handles of one World share: facts, transport, the collectives under way, and what is
// known of the other ranks. Every wait of the room goes through State::await.
#pragma once

#include <drivetrain/comm.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "comm/courier.h"
#include "comm/record.h"
#include "comm/transport.h"
#include "comm/watch.h"

namespace drivetrain::comm {

// What a world of more than one rank stands on.
struct Connections {
  c10::intrusive_ptr<c10d::Store> store;
  bool serves_store = false;  // This rank's process does; it leaves last.
  std::unique_ptr<Watch> watch;
  std::unique_ptr<Transport> transport;
};

// How a message travels: what carries it, and where its memory is.
struct Route {
  at::Device device;
  Transport& transport;
};

class State {
 public:
  State(ProcessFacts facts, Config config);

  // Blocks for a few seconds at most.
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const ProcessFacts& facts() const { return facts_; }
  const Config& config() const { return config_; }

  // Through host memory. Blocks until what waits for a device has been started, so that all ranks
  // start in one order. Throws CommError if that takes longer than the world's timeout.
  Transport& transport();
  Route host_route() { return {at::kCPU, transport()}; }

  // On the tensors' own device, if all are on one whose communication backend is registered
  // (register_comm_backend). **Collective.** on the first such device.
  std::optional<Route> device_route(c10::ArrayRef<at::Tensor> tensors);
  Route route(c10::ArrayRef<at::Tensor> tensors);  // Else through host memory.

  // A collective through host memory once `ready` has returned; in the order of calls.
  Transport::Started start_after(std::function<void()> ready,
                                 std::function<Transport::Started(Transport&)> start);

  // Once, by join(), for a world of more than one rank.
  void connect(Connections connections) { connections_ = std::move(connections); }

  // Numbers a collective that is about to start, and in debug mode compares it over the ranks.
  // Throws CommError if the world has failed or the calls differ.
  Record begin(const Kind& kind, c10::ArrayRef<at::Tensor> tensors,
               const CollectiveOptions& options);

  // Blocks until `work`, a part of the collective, is complete. Throws CommError.
  void await(Work& work, const Record& record);
  void await(const Transport::Started& work, const Record& record) { await(*work, record); }

  // As above until `is_done`, which is asked ever less often.
  void await(const std::function<bool()>& is_done, const Record& record);

  // Ends the world on this rank and tells the others why; only the first call counts.
  void fail(std::string_view reason);

  // As fail, before the process ends: if it serves the store, gives the others time to read it.
  void fail_and_linger(std::string_view reason);

  // Fails with the message and throws it as CommError. blames_peer: it is another rank's doing.
  [[noreturn]] void raise(const std::string& message, bool blames_peer = false);

  // Throws std::invalid_argument unless root is a rank.
  void require_root(const char* name, int root) const;

  Position position();

 private:
  class Waiting;

  void await_slowly(const std::function<bool(Milliseconds)>& is_done, const Record& record);
  void give_up_for_a_reason(const Record& record, const std::string& broken);
  [[noreturn]] void raise_timeout(const Record& record);
  void end(const std::string& message, Ending ending, const std::string& reason,
           bool blames_peer = false);
  void agree(const std::string& signature, const Record& record);
  void leave();
  Milliseconds last_look() const;
  void linger();
  Transport* transport_of(at::DeviceType type);
  std::vector<Transport*> transports();

  const ProcessFacts facts_;
  const Config config_;
  const int exceptions_at_start_;

  std::mutex mutex_;
  Record last_;                    // The last collective that this rank started,
  std::optional<Record> waiting_;  // and the one that it waits in.
  std::string failure_;            // Why the world cannot be used any more.

  Connections connections_;
  std::map<at::DeviceType, std::unique_ptr<Transport>> device_transports_;
  Courier courier_;
};

// A collective that the caller waits for later.
class Call {
 public:
  Call(std::shared_ptr<State> state, Record record, Transport::Started work,
       std::function<void()> finish)
      : state_(std::move(state)),
        record_(record),
        work_(std::move(work)),
        finish_(std::move(finish)) {}

  void wait();
  bool done();

 private:
  std::shared_ptr<State> state_;
  Record record_;
  std::mutex mutex_;
  Transport::Started work_;  // None once waited for.
  std::function<void()> finish_;
};

}  // namespace drivetrain::comm
