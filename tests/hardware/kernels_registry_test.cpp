// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/backends.h>
#include <drivetrain/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "expect_error.h"
#include "hardware/kernels/cpu_level.h"
#include "scoped_env.h"

namespace drivetrain::kernels {
namespace {

using Answer = std::function<int()>;

// A kernel whose run returns `answer`; the reasons are what its two checks say.
Kernel answering(const std::string& name, int answer, int priority,
                 const std::string& unavailable = "", const std::string& incompatible = "") {
  return {.operation = "answer",
          .name = name,
          .backend = "cpu",
          .priority = priority,
          .why_unavailable = [unavailable] { return unavailable; },
          .why_incompatible = [incompatible] { return incompatible; },
          .run = Answer([answer] { return answer; })};
}

std::vector<std::string> descriptions(const KernelRegistry& registry) {
  std::vector<std::string> lines;
  for (const KernelVerdict& verdict : registry.report("answer", "cpu"))
    lines.push_back(describe(verdict) + (verdict.chosen ? " *" : ""));
  return lines;
}

TEST(KernelRegistry, TakesTheHighestPriorityThatIsAvailableAndCompatible) {
  KernelRegistry registry;
  registry.add(answering("plain", 1, 1));
  registry.add(answering("fast", 2, 10));
  registry.add(answering("absent", 3, 30, "the device is in another machine"));
  registry.add(answering("old", 4, 20, "", "made for version 1"));
  EXPECT_EQ(registry.load<Answer>("answer", "cpu")(), 2);
  EXPECT_THAT(
      descriptions(registry),
      testing::ElementsAre("absent (priority 30): not available: the device is in another machine",
                           "old (priority 20): not compatible: made for version 1",
                           "fast (priority 10): highest priority *",
                           "plain (priority 1): usable, but fast comes first"));
}

TEST(KernelRegistry, OfEqualPrioritiesTheFirstAddedIsTaken) {
  KernelRegistry registry;
  registry.add(answering("first", 1, 5));
  registry.add(answering("second", 2, 5));
  EXPECT_EQ(registry.load<Answer>("answer", "cpu")(), 1);
}

TEST(KernelRegistry, ChecksAreAskedAtEachChoice) {
  KernelRegistry registry;
  bool is_there = false;
  Kernel better = answering("better", 2, 9);
  better.why_unavailable = [&] { return is_there ? "" : "unplugged"; };
  registry.add(answering("plain", 1, 1));
  registry.add(better);
  EXPECT_EQ(registry.load<Answer>("answer", "cpu")(), 1);
  is_there = true;
  EXPECT_EQ(registry.load<Answer>("answer", "cpu")(), 2);
}

TEST(KernelRegistry, AKernelWithoutChecksIsUsable) {
  KernelRegistry registry;
  registry.add(
      {.operation = "answer", .name = "any", .backend = "cpu", .run = Answer([] { return 7; })});
  EXPECT_EQ(registry.load<Answer>("answer", "cpu")(), 7);
}

TEST(KernelRegistry, ByNameALowerPriorityIsTakenButStillChecked) {
  KernelRegistry registry;
  registry.add(answering("plain", 1, 1));
  registry.add(answering("fast", 2, 10));
  registry.add(answering("absent", 3, 30, "no such device"));
  EXPECT_EQ(registry.load<Answer>("answer", "cpu", "plain")(), 1);
  EXPECT_ERROR(
      registry.load<Answer>("answer", "cpu", "absent"), HardwareError,
      "kernel \"absent\" for answer on cpu cannot be used; found: absent (priority 30): not "
      "available: no such device, fast (priority 10): highest priority");
  EXPECT_ERROR(registry.load<Answer>("answer", "cpu", "none"), HardwareError,
               "kernel \"none\" for answer on cpu cannot be used");
}

TEST(KernelRegistry, SaysWhyNoneCanBeUsed) {
  KernelRegistry registry;
  registry.add(answering("absent", 3, 30, "no such device"));
  registry.add(answering("old", 4, 20, "", "made for version 1"));
  EXPECT_ERROR(
      registry.load<Answer>("answer", "cpu"), HardwareError,
      "no kernel for answer on cpu can be used; found: absent (priority 30): not available: "
      "no such device, old (priority 20): not compatible: made for version 1; allowed: one "
      "that is available and compatible");
}

TEST(KernelRegistry, NamesWhatThereIsForAnUnknownOperationOrBackend) {
  KernelRegistry registry;
  EXPECT_ERROR(registry.load<Answer>("answer", "cpu"), HardwareError,
               "there is no kernel for answer on cpu; allowed: none is registered");
  registry.add(answering("plain", 1, 1));
  EXPECT_ERROR(
      registry.load<Answer>("anwser", "cpu"), HardwareError,
      "there is no kernel for anwser on cpu; allowed: answer on cpu; did you mean answer?");
  EXPECT_ERROR(registry.load<Answer>("answer", "cuda"), HardwareError,
               "there is no kernel for answer on cuda; allowed: answer on cpu; register one");
  EXPECT_TRUE(registry.has("answer", "cpu"));
  EXPECT_FALSE(registry.has("answer", "cuda"));
  EXPECT_TRUE(registry.report("answer", "cuda").empty());
}

TEST(KernelRegistry, RefusesAFunctionOfAnotherType) {
  KernelRegistry registry;
  registry.add(answering("plain", 1, 1));
  EXPECT_ERROR(registry.load<AdamKernel>("answer", "cpu"), HardwareError,
               "kernel \"plain\" for answer on cpu was registered with a function of another type");
}

TEST(KernelRegistry, RefusesWhatCannotBeRegistered) {
  KernelRegistry registry;
  registry.add(answering("plain", 1, 1));
  EXPECT_ERROR(registry.add(answering("plain", 2, 9)), HardwareError,
               "kernel \"plain\" for answer on cpu is registered already; allowed: each name once");
  EXPECT_ERROR(registry.add(answering("", 2, 9)), HardwareError,
               "kernel \"\" for answer on cpu has an empty name");
  Kernel hollow = answering("hollow", 2, 9);
  hollow.run.reset();
  EXPECT_ERROR(registry.add(hollow), HardwareError,
               "kernel \"hollow\" for answer on cpu has no function");
}

TEST(KernelRegistry, RemovesByName) {
  KernelRegistry registry;
  registry.add(answering("plain", 1, 1));
  registry.add(answering("fast", 2, 10));
  registry.remove("answer", "cpu", "fast");
  EXPECT_EQ(registry.load<Answer>("answer", "cpu")(), 1);
  EXPECT_ERROR(registry.remove("answer", "cpu", "fast"), HardwareError,
               "kernel \"fast\" for answer on cpu is not registered");
}

TEST(BuiltinKernels, TheWidestInstructionSetOfThisMachineIsTaken) {
  const ScopedEnv unset("DRIVETRAIN_CPU_CAPABILITY", nullptr);
  std::string widest;
  for (const CpuLevel level : kCpuLevels)
    if (why_lacking(level).empty()) widest = name_of(level);
  for (const char* operation : {"adam", "grad_norm"}) {
    const auto report = kernel_registry().report(operation, "cpu");
    ASSERT_EQ(report.size(), kCpuLevels.size());
    for (const KernelVerdict& verdict : report)
      EXPECT_EQ(verdict.chosen, verdict.name == widest) << describe(verdict);
  }
}

TEST(BuiltinKernels, TheVariableForcesALevel) {
  const ScopedEnv forced("DRIVETRAIN_CPU_CAPABILITY", "scalar");
  const auto report = kernel_registry().report("adam", "cpu");
  ASSERT_EQ(report.size(), kCpuLevels.size());
  EXPECT_TRUE(report.back().chosen);
  EXPECT_EQ(report.back().name, "scalar");
  for (const CpuLevel level : {CpuLevel::avx512, CpuLevel::avx2}) {
    const KernelVerdict& verdict = report[level == CpuLevel::avx512 ? 0 : 1];
    const std::string lacking = why_lacking(level);
    EXPECT_EQ(verdict.name, name_of(level));
    EXPECT_EQ(verdict.reason, lacking.empty()
                                  ? "not compatible: DRIVETRAIN_CPU_CAPABILITY asks for scalar"
                                  : "not available: " + lacking);
  }
}

TEST(BuiltinKernels, AWrongLevelIsRefused) {
  const ScopedEnv forced("DRIVETRAIN_CPU_CAPABILITY", "sse9");
  EXPECT_ERROR(kernel_registry().load<AdamKernel>("adam", "cpu"), ConfigError,
               "environment variable DRIVETRAIN_CPU_CAPABILITY is \"sse9\"; allowed: scalar, avx2, "
               "avx512; correct or unset it");
}

}  // namespace
}  // namespace drivetrain::kernels
