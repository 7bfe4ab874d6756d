// SPDX-License-Identifier: Apache-2.0
#include "parallel/join.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <drivetrain/error.h>

#include "core/text.h"
#include "parallel/gradient_sync.h"

namespace drivetrain::parallel {
namespace {

// Answers until no rank is left. True if there was anything to answer.
bool answer(Join& join, std::span<GradientSync* const> models) {
  bool answered = false;
  for (Join::Announcement next = join.listen(); !next.active.empty(); next = join.listen()) {
    models[next.model]->answer(next);
    answered = true;
  }
  return answered;
}

// A rank that ran to the end: the highest of those that never had to answer.
int longest(const World& world, bool answered) {
  const at::Tensor rank = at::full({1}, answered ? -1 : world.rank(), at::kLong);
  world.all_reduce_async(rank, ReduceOp::max).wait();
  return static_cast<int>(rank.const_data_ptr<int64_t>()[0]);
}

class OpenJoin {
 public:
  OpenJoin(std::span<GradientSync* const> models, Join& join) : models_(models) {
    for (const GradientSync* model : models)
      if (model->is_joined())
        throw ConfigError("parallel",
                          "a scope of uneven inputs is open for this model; allowed: one at a "
                          "time; close it before the next");
    for (size_t i = 0; i < models.size(); ++i) models[i]->set_join(&join, i);
  }
  ~OpenJoin() {
    for (GradientSync* model : models_) model->set_join(nullptr, 0);
  }
  OpenJoin(const OpenJoin&) = delete;
  OpenJoin& operator=(const OpenJoin&) = delete;

 private:
  std::span<GradientSync* const> models_;
};

}  // namespace

Join::Join(const World& world, const JoinOptions& options, size_t num_models)
    : world_(world), options_(options), num_models_(num_models) {}

Join::Announcement Join::announce(size_t model, Event event) {
  const auto code = static_cast<int64_t>(model * 2 + (event == Event::backward ? 1 : 0));
  return exchange(true, code);
}

Join::Announcement Join::listen() { return exchange(false, 0); }

double Join::scale(const Announcement& announcement) const {
  if (options_.divide_by_initial_world_size) return 1.0 / world_.world_size();
  return 1.0 / static_cast<double>(announcement.active.size());
}

Join::Announcement Join::exchange(bool is_active, int64_t code) {
  const int world_size = world_.world_size();
  const at::Tensor message = at::zeros({world_size + 1}, at::kLong);
  auto* data = message.mutable_data_ptr<int64_t>();
  data[world_.rank()] = is_active ? 1 : 0;
  data[world_size] = code;
  world_.all_reduce_async(message, ReduceOp::sum).wait();
  Announcement result;
  for (int rank = 0; rank < world_size; ++rank)
    if (data[rank] != 0) result.active.push_back(rank);
  const auto num_active = static_cast<int64_t>(result.active.size());
  if (num_active == 0) return result;
  if (options_.throw_on_early_termination && num_active < world_size)
    throw CommError(core::str(world_size - num_active, " of ", world_size,
                              " ranks ran out of batches; allowed: as many on every rank, as "
                              "throw_on_early_termination is set; even the batches or unset it"));
  if (is_active && data[world_size] != code * num_active)
    throw CommError(core::str("this rank is at step ", code,
                              " of its models, others at another; "
                              "allowed: the same forwards and backwards on every rank that has "
                              "batches; call the models in the same order everywhere"));
  result.model = static_cast<size_t>(data[world_size] / num_active / 2);
  result.event = data[world_size] / num_active % 2 == 1 ? Event::backward : Event::forward;
  return result;
}

void join_uneven_inputs(const World& world, std::span<GradientSync* const> models,
                        const JoinOptions& options, const std::function<void()>& body) {
  if (world.world_size() == 1 || models.empty()) return body();
  Join join(world, options, models.size());
  {
    const OpenJoin open(models, join);
    body();
  }
  const int root = longest(world, answer(join, models));
  for (GradientSync* model : models) model->replicate_from(root);
}

}  // namespace drivetrain::parallel
