// SPDX-License-Identifier: Apache-2.0
// One rank, as a process. The argument is the part that it plays; processes_test.cpp starts it.
// Exit codes: 0 all is well, 3 a drivetrain::Error, its message on standard error.
#include <drivetrain/comm.h>
#include <torch/torch.h>

#include <chrono>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

using drivetrain::World;
using namespace std::chrono_literals;

void say(const std::string& line) { std::cout << line << std::endl; }

void reduce_forever(const World& world) {
  for (int i = 0;; ++i) {
    drivetrain::all_reduce(world, torch::ones({4}));
    if (i == 0) say("started");
  }
}

// Several worlds of the same processes: one after the other, and two at once.
void make_worlds() {
  for (int i = 0; i < 5; ++i) {
    const World world = World::from_environment();
    const int sum = drivetrain::all_reduce(world, torch::tensor(1)).item<int>();
    if (sum != world.world_size()) throw std::runtime_error("a wrong sum");
  }
  const World first = World::from_environment();
  const World second = World::from_environment();
  drivetrain::barrier(second);
  drivetrain::barrier(first);
}

int play(const std::string& part) {
  if (part == "worlds") {
    make_worlds();
    return 0;
  }
  const World world = World::from_environment();
  drivetrain::barrier(world);
  say("joined");
  if (part == "reduce") reduce_forever(world);
  if (part == "rank 1 throws") {
    if (world.rank() == 1) throw std::runtime_error("sample 17 is bad");
    reduce_forever(world);
  }
  if (part == "rank 0 throws") {
    if (world.rank() == 0) throw std::runtime_error("sample 17 is bad");
    reduce_forever(world);
  }
  if (part == "rank 0 leaves") {
    if (world.rank() != 0) drivetrain::barrier(world);
  }
  if (part == "rank 0 is first to end") std::this_thread::sleep_for(world.rank() * 300ms);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // Only our own errors are caught: others are to end in std::terminate.
  try {
    return play(argc > 1 ? argv[1] : "");
  } catch (const drivetrain::Error& error) {
    std::cerr << error.what() << std::endl;
    return 3;
  }
}
