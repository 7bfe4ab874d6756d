// SPDX-License-Identifier: Apache-2.0
// What the calling thread reads just now, and the random numbers that belong to it.
//
// A sample's random numbers come from a generator of the thread, seeded from (seed, epoch, index)
// at its first use while the sample is read. Operations that draw random numbers and name no
// generator are given this one by kernels on the dispatch key DeferredInit (which LibTorch keeps
// free), included in the thread's key set by SampleScope; no other operation is touched.
#pragma once

#include <drivetrain/dataset.h>

#include <atomic>
#include <cstdint>

namespace drivetrain::data {

// What others may know of a thread that reads.
struct ReadState {
  std::atomic<int64_t> index = -1;             // of the sample being read
  const std::atomic<bool>* stopped = nullptr;  // set: the next sample throws Stopped
};

// Thrown by SampleScope in a thread whose pool ends; nobody waits for its result.
struct Stopped {};

// Makes `state` the calling thread's.
class ReadStateGuard {
 public:
  explicit ReadStateGuard(ReadState& state);
  ~ReadStateGuard();
  ReadStateGuard(const ReadStateGuard&) = delete;
  ReadStateGuard& operator=(const ReadStateGuard&) = delete;

 private:
  ReadState* outer_;
};

// Sets the seed and the epoch of the samples that the calling thread reads.
class EpochScope {
 public:
  EpochScope(uint64_t seed, uint64_t epoch);
  ~EpochScope();
  EpochScope(const EpochScope&) = delete;
  EpochScope& operator=(const EpochScope&) = delete;

 private:
  uint64_t outer_;
};

}  // namespace drivetrain::data
