// SPDX-License-Identifier: Apache-2.0
// Which samples a rank gets in its k-th batch: pure arithmetic over positions in the epoch's order.
//
// A round is one batch on every rank: the next world_size * batch_size samples, rank r taking the
// r-th stretch of batch_size. With n samples in the epoch, position p stands for
//   sample p            where p < n,
//   sample (p - n) % n  where p >= n and the last round is filled up (even): padding that starts
//                       again at the epoch's first samples and goes on from rank to rank.
// Splitting a batch of b over w ranks gives the same shares as batches of b / w on each rank.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace drivetrain::data {

struct Shard {
  int64_t num_samples = 0;  // of the whole epoch
  int64_t num_done = 0;     // that were used before this pass: it covers the rest
  int64_t batch_size = 1;   // rows on a rank
  int world_size = 1;
  bool drop_last = false;  // the last, incomplete round is left out on every rank
  bool even = true;        // otherwise it is filled up, or yielded as short as it is

  // The number of batches that rank gets.
  int64_t num_batches(int rank) const;

  // The sample positions of the rank's k-th batch; the real ones come first.
  std::vector<int64_t> positions(int rank, int64_t k) const;

  // How many of them are no padding.
  int64_t num_real(int rank, int64_t k) const;

  // The samples used up once every rank has had its k-th batch.
  int64_t done_after(int64_t k) const;

 private:
  std::pair<int64_t, int64_t> stretch(int rank, int64_t k) const;
};

// The same for one round of a stream, of which `count` samples came (at most world_size *
// batch_size) after a first round of `first_count`. Entry i >= 0 is the round's sample i; entry
// ~i < 0 is sample i of the first round, as padding.
std::vector<int64_t> picks_of_round(const Shard& shard, int rank, int64_t count,
                                    int64_t first_count);

}  // namespace drivetrain::data
