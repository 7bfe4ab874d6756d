// SPDX-License-Identifier: Apache-2.0
// Uneven inputs: a rank that has run out of batches answers the collectives of the others, with
// zeros, until all have.
//
// Inside the scope each step of a model (its buffers sent before a forward, its gradients reduced
// after a backward) is announced by a small all-reduce of its own; that tells the ranks without
// batches what comes, and all ranks who is left.
#pragma once

#include <drivetrain/parallel.h>

#include <functional>
#include <span>
#include <vector>

namespace drivetrain::parallel {

class GradientSync;

// Collective. Runs `body`, a loop over this rank's batches that may be shorter or longer than that
// of the others, in which the only collectives are those of `models`, in the same order on every
// rank (gather_for_metrics and the like are not answered). At the end all ranks have the parameters
// and buffers of one that ran longest; the optimizer's state of a rank that ended sooner is that of
// its own last step. In a world of one, only runs `body`. If `body` throws, so does this.
// Throws CommError as JoinOptions says; ConfigError if a scope of one of the models is open
// already.
void join_uneven_inputs(const World& world, std::span<GradientSync* const> models,
                        const JoinOptions& options, const std::function<void()>& body);

// The protocol, as the models use it.
class Join {
 public:
  enum class Event { forward, backward };

  struct Announcement {
    std::vector<int> active;  // ranks that still have batches, ascending
    size_t model = 0;
    Event event = Event::forward;
  };

  Join(const World& world, const JoinOptions& options, size_t num_models);

  // Collective. Blocks. Called by a rank that still has batches, and by one that has none.
  Announcement announce(size_t model, Event event);
  Announcement listen();

  // A backward of one of several models may run between the messages of another.
  bool may_overlap() const { return num_models_ == 1; }

  // By what a sum over all ranks becomes a mean.
  double scale(const Announcement& announcement) const;

 private:
  Announcement exchange(bool is_active, int64_t code);

  World world_;
  JoinOptions options_;
  size_t num_models_;
};

}  // namespace drivetrain::parallel
