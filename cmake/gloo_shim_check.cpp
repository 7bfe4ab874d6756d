// SPDX-License-Identifier: Apache-2.0
// Two ranks as threads reduce a tensor and close their connections, by the means that src/comm has.
#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <atomic>
#include <cstdio>
#include <exception>
#include <thread>

namespace {

class Group : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  void close() {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

// 1 + 2, then an operation that closing the connections must end.
bool runs(const c10::intrusive_ptr<c10d::Store>& store, int rank) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(20));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  Group group(store, rank, 2, options);
  std::vector<at::Tensor> tensors = {at::full({3}, rank + 1.0)};
  group.allreduce(tensors)->wait();
  const bool is_right = tensors[0].sum().item<double>() == 9.0;
  if (rank == 1) return is_right;
  auto alone = group.allreduce(tensors);
  group.close();
  try {
    alone->wait();
    return false;
  } catch (const std::exception&) {
    return is_right;
  }
}

}  // namespace

int main() {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<int> right{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] { right += runs(store, rank) ? 1 : 0; });
  for (auto& rank : ranks) rank.join();
  std::printf("%d of 2 ranks are right\n", right.load());
  return right == 2 ? 0 : 1;
}
