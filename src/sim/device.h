// SPDX-License-Identifier: Apache-2.0
// The devices of this process, and what each thread has chosen of them. Valid once load() is done.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <drivetrain_sim/sim.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "sim/arena.h"
#include "sim/queue.h"

namespace drivetrain::sim {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::StreamId kPool = 32;  // streams of one priority, handed out in turn
constexpr c10::StreamId kStreams = 1 + 2 * kPool;

class SimDevice {
 public:
  SimDevice(int index, const Settings& settings);

  std::string name() const;  // "sim:1"
  Arena& arena();            // mapped by the first call
  // **Throws c10::Error if** there is no such stream.
  Queue& queue(c10::StreamId id);
  c10::StreamId new_stream(bool urgent);
  Activity& activity() { return activity_; }
  const Activity& activity() const { return activity_; }

  bool idle() const;
  void drain();        // all streams
  void synchronize();  // drain(), then **throws** what a kernel failed with
  void stop();
  void join();

  // Keeps `queue` waiting as long as `bytes` take from or to this device since `start`.
  enum class Way { in, out };
  void transfer(Queue& queue, Way way, int64_t bytes, Clock::time_point start);

 private:
  const int index_;
  const Settings settings_;
  std::mutex mutex_;
  std::unique_ptr<Arena> arena_;
  std::array<Clock::time_point, 2> link_free_{};  // when each way has done what it was given
  Activity activity_;
  std::array<std::unique_ptr<Queue>, kStreams> queues_;
  std::array<std::atomic<c10::StreamId>, 2> last_{};  // of each priority
};

const Settings& settings();
void set_settings(const Settings& settings);  // Requires: called once, before any of the below.

SimDevice& device(int index);
// Whether device() has been asked for it.
bool is_touched(int index);
int current_device();
// **Throws c10::Error if** there is no such device.
void set_current_device(c10::Device device);
c10::Stream current_stream(int index);
void set_current_stream(c10::Stream stream);  // of its device
Queue& queue_of(const c10::Stream& stream);
Queue& current_queue(int index);

// **Throws c10::Error** while the driver is broken (sim.h).
void check_driver();

// Ends every thread: at exit.
void stop_all();

}  // namespace drivetrain::sim
