// SPDX-License-Identifier: Apache-2.0
// Writes the timelines that memory_pictures_test.py reads with parsers of XML and JSON, into the
// folder DRIVETRAIN_TEST_OUTPUT; without it only that they can be written is tested.
#include <torch/torch.h>

#include <drivetrain/memory.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "memory_models.h"

namespace drivetrain {
namespace {

using testing::Folder;
using testing::read;
using testing::ScriptedAccelerator;

class Pictures : public ::testing::Test {
 protected:
  Pictures() {
    const char* output = std::getenv("DRIVETRAIN_TEST_OUTPUT");
    folder = output == nullptr ? scratch / "" : std::filesystem::path(output);
  }

  // All three forms of a run of `steps` whose figures are made up.
  void draw(const std::string& name, int64_t steps, MemoryTimelineOptions options = {},
            Capabilities can = {}) {
    auto accelerator = std::make_shared<ScriptedAccelerator>(can);
    const std::vector<at::Tensor> weights = {torch::zeros({4000}), torch::zeros({700})};
    MemoryTimeline timeline(accelerator, options);
    timeline.track(MemoryCategory::parameters, [&] { return weights; }, "weights");
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t current = 40'000 + step * 7919 % 10'007;
      accelerator->stats.allocated_bytes = {current, current + step * 31 % 997, 0, 0};
      if (step % 2 == 0) timeline.mark("after <forward> & \"co\"");
      timeline.step();
    }
    timeline.write_svg(folder / (name + ".svg"));
    timeline.write_html(folder / (name + ".html"));
    timeline.write_json(folder / (name + ".json"));
    EXPECT_GT(read(folder / (name + ".svg")).size(), 1000U);
  }

  Folder scratch;
  std::filesystem::path folder;
};

TEST_F(Pictures, OfNoStep) { draw("none", 0); }
TEST_F(Pictures, OfOneStep) { draw("one", 1); }
TEST_F(Pictures, OfSevenSteps) { draw("seven", 7); }
TEST_F(Pictures, OfManySteps) { draw("many", 10'000, {.max_points = 500}); }
TEST_F(Pictures, WithALimitInReach) { draw("limit", 20, {.limit_bytes = 60'000}); }
TEST_F(Pictures, WithALimitFarAbove) { draw("far", 20, {.limit_bytes = int64_t{80} << 30}); }
TEST_F(Pictures, WithoutPeaks) { draw("sampled", 20, {}, {.memory_peaks = false}); }

TEST_F(Pictures, WithTextThatIsMarkup) {
  draw("text", 3,
       {.title = "</title><script>alert(1)</script> ]]> & \"'\x01\xff\xef\xbf\xbf \xc3\xa9"});
}

TEST_F(Pictures, WithALongTitle) { draw("long", 3, {.title = std::string(1000, 'x')}); }

// The figures of a steady run change nowhere: neither does the outline.
TEST_F(Pictures, OfASteadyRunAreSmall) {
  auto accelerator = std::make_shared<ScriptedAccelerator>();
  accelerator->stats.allocated_bytes = {1000, 2000, 0, 0};
  MemoryTimeline timeline(accelerator);
  for (int step = 0; step < 1000; ++step) timeline.step();
  timeline.write_svg(folder / "steady.svg");
  EXPECT_LT(read(folder / "steady.svg").size(), 10'000U);
}

}  // namespace
}  // namespace drivetrain
