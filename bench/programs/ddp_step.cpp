// SPDX-License-Identifier: Apache-2.0
// A data-parallel step: prepared, and with c10d's Reducer, by turns in the same processes; the twin
// of ddp_step.py. Both sides step the same class of optimizer, so that only the averaging differs.
//
// usage: bench_ddp_step small|25m
#include <torch/torch.h>

#include <drivetrain/accelerator.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "blocks.h"
#include "mlp.h"

namespace {

struct Size {
  std::vector<int64_t> widths;
  int64_t rows;  // a rank
  bench::Plan plan;
};

Size size_named(const std::string& name) {
  if (name == "small") return {{64, 256, 10}, 32, {.warmups = 50, .blocks = 20, .steps = 50}};
  if (name == "25m") return {{1024, 4096, 4096, 1024}, 32, {.warmups = 3, .blocks = 6, .steps = 3}};
  throw std::invalid_argument("bench_ddp_step: size \"" + name + "\"; allowed: small, 25m");
}

// A Gloo group of its own, met at a store that rank 0 serves on a free port.
c10::intrusive_ptr<c10d::ProcessGroup> make_group(const drivetrain::World& world) {
  const std::string host = "127.0.0.1";
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = world.is_main();
  options.numWorkers = world.world_size();
  options.waitWorkers = false;
  c10::intrusive_ptr<c10d::TCPStore> store;
  if (world.is_main()) store = c10::make_intrusive<c10d::TCPStore>(host, options);
  options.port = drivetrain::broadcast_object(world, store ? store->getPort() : uint16_t{0});
  if (!store) store = c10::make_intrusive<c10d::TCPStore>(host, options);

  auto gloo_options = c10d::ProcessGroupGloo::Options::create();
  gloo_options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(host));
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, world.rank(), world.world_size(),
                                                          gloo_options);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, world.rank(), world.world_size());
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

// As torch.nn.parallel.DistributedDataParallel makes it, with gradients as views of its buckets,
// which spares a copy.
std::unique_ptr<c10d::Reducer> make_reducer(const std::vector<at::Tensor>& parameters,
                                            c10::intrusive_ptr<c10d::ProcessGroup> group) {
  constexpr int64_t kFirstBucket = 1 << 20, kBucket = 25 << 20;
  const std::vector<bool> no_sparse(parameters.size(), false);
  const auto [buckets, limits] =
      c10d::compute_bucket_assignment_by_size(parameters, {kFirstBucket, kBucket}, no_sparse);
  return std::unique_ptr<c10d::Reducer>(new c10d::Reducer(
      parameters, {buckets.rbegin(), buckets.rend()}, std::move(group), no_sparse, kBucket,
      /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true, /*param_names=*/{},
      kFirstBucket, /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/{}));
}

void run(const Size& size) {
  at::set_num_threads(1);
  drivetrain::Accelerator accelerator;
  torch::manual_seed(1 + accelerator.process_index());
  const auto data = torch::randn({size.rows, size.widths.front()});
  const auto target = torch::randint(size.widths.back(), {size.rows});

  torch::manual_seed(0);
  auto their_model = bench::mlp(size.widths);
  const auto reducer = make_reducer(their_model->parameters(), make_group(accelerator.world()));
  drivetrain::PreparedOptimizer their_optimizer(torch::optim::SGD(their_model->parameters(), 0.01));
  const auto their_step = [&] {
    reducer->prepare_for_forward();
    reducer->rebuild_buckets();
    const auto loss = torch::cross_entropy_loss(their_model->forward(data), target);
    reducer->prepare_for_backward({});
    loss.backward();
    their_optimizer.step();
    their_optimizer.zero_grad();
  };

  torch::manual_seed(0);
  auto model = accelerator.prepare(bench::mlp(size.widths));
  auto optimizer = accelerator.prepare(torch::optim::SGD(model->parameters(), 0.01));
  const auto step = [&] {
    const auto loss = torch::cross_entropy_loss(model->forward(data), target);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  };

  for (int i = 0; i < 3; ++i) step(), their_step();
  bench::expect_equal(model->parameters(), their_model->parameters());
  std::vector<bench::Side> sides = {{"ours", step}, {"reducer", their_step}};
  bench::time_by_turns(sides, size.plan, [&] { accelerator.wait_for_everyone(); });
  if (accelerator.is_main_process()) bench::report(sides);
}

}  // namespace

int main(int argc, char** argv) {
  run(size_named(argc == 2 ? argv[1] : ""));
  return 0;
}
