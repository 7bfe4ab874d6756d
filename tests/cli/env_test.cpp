// SPDX-License-Identifier: Apache-2.0
// What `drivetrain env` collects, and that no driver can take it down: the helper is asked in
// scripts that crash, hang and babble.
#include <drivetrain/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "cli/env/bounded_run.h"
#include "cli/env/command_line.h"
#include "cli/env/facts.h"
#include "expect_error.h"
#include "run_shell.h"

namespace drivetrain::cli {
namespace {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kAnswer = R"({
  "libtorch": {"version": "2.13.0", "built_with": "2.13.0",
    "device_libraries": [{"name": "libtorch_cuda.so", "present": true, "loaded": false}]},
  "detection": {"chosen": "cpu", "problem": ""},
  "accelerators": [
    {"name": "cuda", "available": false, "reason": "no device", "runtime_version": "12.8", "devices": []},
    {"name": "cpu", "available": true, "reason": "1 device", "runtime_version": "",
     "devices": [{"index": 0, "name": "A fast one", "memory_bytes": 1073741824, "errors": []}]}]
})";

// A program of this text, in place of drivetrain-probe.
class Script {
 public:
  explicit Script(const std::string& text) : path_(::testing::TempDir() + "probe-XXXXXX") {
    const int fd = ::mkstemp(path_.data());
    EXPECT_GE(fd, 0);
    ::close(fd);
    std::ofstream(path_) << "#!/bin/sh\n" << text << "\n";
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
  }
  ~Script() { std::filesystem::remove(path_); }
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Probe ask(const std::string& script, std::chrono::milliseconds limit = 10s) {
  const Script program(script);
  return ask_probe(program.path(), limit);
}

TEST(BoundedRun, GivesBothStreamsAndTheStatus) {
  const Finished run = run_bounded({"/bin/sh", "-c", "echo out; echo err >&2; exit 3"}, 10s);
  EXPECT_EQ(run.out, "out\n");
  EXPECT_EQ(run.err, "err\n");
  EXPECT_EQ(WEXITSTATUS(run.status), 3);
  EXPECT_FALSE(run.timed_out);
}

TEST(BoundedRun, TakesMoreThanAPipeHolds) {
  const Finished run = run_bounded({"/bin/sh", "-c", "yes x | head -c 1000001; echo e >&2"}, 30s);
  EXPECT_EQ(run.out.size(), 1'000'001U);
  EXPECT_EQ(run.err, "e\n");
}

TEST(BoundedRun, KillsWhatHangsWithAllThatItStarted) {
  const Finished run =
      run_bounded({"/bin/sh", "-c", "sleep 1000 & echo $!; trap '' TERM; wait; sleep 1000"}, 200ms);
  EXPECT_TRUE(run.timed_out);
  EXPECT_GE(run.seconds, 0.2);
  EXPECT_LT(run.seconds, 5);
  const std::string child = "/proc/" + std::to_string(std::atoi(run.out.c_str())) + "/stat";
  for (int i = 0; i < 500 && std::filesystem::exists(child); ++i) ::usleep(10'000);
  std::string stat;
  std::getline(std::ifstream(child), stat);
  EXPECT_TRUE(stat.empty() || stat.find(") Z") != std::string::npos) << stat;
}

TEST(BoundedRun, DoesNotWaitForWhatHoldsItsPipes) {
  const Finished run = run_bounded({"/bin/sh", "-c", "sleep 20 & echo done"}, 10s);
  EXPECT_EQ(run.out, "done\n");
  EXPECT_LT(run.seconds, 5);
  EXPECT_FALSE(run.timed_out);
}

TEST(BoundedRun, SaysWhatCannotBeStarted) {
  const Finished run = run_bounded({"/nowhere/program"}, 10s);
  EXPECT_EQ(WEXITSTATUS(run.status), 126);
  EXPECT_THAT(run.err, HasSubstr("No such file"));
}

TEST(AskProbe, ReadsTheAnswer) {
  const Probe probe =
      ask(std::string("echo drivetrain-probe: step >&2; echo a warning >&2; cat <<'END'\n") +
          kAnswer + "\nEND");
  ASSERT_EQ(probe.state, ProbeState::answered) << probe.problem;
  EXPECT_EQ(probe.version, "2.13.0");
  EXPECT_THAT(probe.lines, ElementsAre("a warning"));
  ASSERT_EQ(probe.libraries.size(), 1U);
  EXPECT_TRUE(probe.libraries[0].is_present);
  EXPECT_FALSE(probe.libraries[0].is_loaded);
  ASSERT_EQ(probe.backends.size(), 2U);
  EXPECT_EQ(probe.backends[0].reason, "no device");
  EXPECT_EQ(probe.backends[0].runtime_version, "12.8");
  EXPECT_EQ(probe.backends[1].devices, 1);
}

TEST(AskProbe, ReportsACrashWithSignalAndLastLines) {
  const Probe probe = ask("echo asking cuda >&2; kill -SEGV $$");
  EXPECT_EQ(probe.state, ProbeState::crashed);
  EXPECT_EQ(probe.problem, "ended by SIGSEGV");
  EXPECT_THAT(probe.lines, ElementsAre("asking cuda"));
}

TEST(AskProbe, ReportsAHang) {
  const Probe probe = ask("echo asking cuda >&2; sleep 1000", 300ms);
  EXPECT_EQ(probe.state, ProbeState::timed_out);
  EXPECT_EQ(probe.problem, "no answer within 0.3 s");
  EXPECT_THAT(probe.lines, ElementsAre("asking cuda"));
  EXPECT_LT(probe.seconds, 5);
}

TEST(AskProbe, TellsTheLoadersRefusals) {
  const Probe missing =
      ask("echo './p: error while loading shared libraries: libtorch_cpu.so: cannot open' >&2;"
          "exit 127");
  EXPECT_EQ(missing.state, ProbeState::not_loaded);
  EXPECT_EQ(missing.problem, "error while loading shared libraries: libtorch_cpu.so: cannot open");
  EXPECT_EQ(ask("echo './p: symbol lookup error: x: undefined symbol: _Z' >&2; exit 127").state,
            ProbeState::not_loaded);
  EXPECT_EQ(
      ask("echo \"p: libstdc++.so.6: version \\`GLIBCXX_3.4.99' not found\" >&2; exit 1").problem,
      "version `GLIBCXX_3.4.99' not found");
}

TEST(AskProbe, ReportsOtherFailures) {
  EXPECT_EQ(ask("echo no >&2; exit 5").problem, "exit code 5");
  EXPECT_EQ(ask("exit 5").state, ProbeState::failed);
  EXPECT_THAT(ask("echo '{'").problem, HasSubstr("its answer is not what this version writes"));
  EXPECT_EQ(ask("echo '{}'").state, ProbeState::failed);
  EXPECT_EQ(ask("true").state, ProbeState::failed);
}

TEST(AskProbe, KeepsTheLastLinesOnly) {
  const Probe probe = ask("for i in 1 2 3 4 5 6 7 8 9 10 11; do echo $i >&2; done; exit 1");
  EXPECT_EQ(probe.lines.size(), 8U);
  EXPECT_EQ(probe.lines.back(), "11");
}

TEST(AskProbe, SaysWhereItLooked) {
  const Probe named = ask_probe("/nowhere/probe", 10s);
  EXPECT_EQ(named.state, ProbeState::missing);
  EXPECT_EQ(named.problem, "not found or not executable: /nowhere/probe");
  // This test program lies in the build's folder, as the command does.
  EXPECT_EQ(ask_probe("/etc/passwd", 10s).state, ProbeState::missing);
}

TEST(Variables, AreGroupedByWhatReadsThem) {
  const VariableGroups groups = group_variables({{"CUDA_VISIBLE_DEVICES", "0"},
                                                 {"DRIVETRAIN_CPU", "1"},
                                                 {"ACCELERATE_USE_CPU", "1"},
                                                 {"DRIVETRAIN_CPUU", "1"},
                                                 {"RANK", "0"},
                                                 {"OMPI_COMM_WORLD_RANK", "0"},
                                                 {"OMP_NUM_THREADS", "4"},
                                                 {"NCCL_DEBUG", "INFO"},
                                                 {"AWS_SECRET_ACCESS_KEY", "secret"},
                                                 {"HOME", "/h"}});
  const auto names = [](const Environment& group) {
    std::vector<std::string> all;
    for (const auto& [name, value] : group) all.push_back(name);
    return all;
  };
  EXPECT_THAT(names(groups.visible_devices), ElementsAre("CUDA_VISIBLE_DEVICES"));
  EXPECT_THAT(names(groups.settings),
              ElementsAre("ACCELERATE_USE_CPU", "DRIVETRAIN_CPU", "DRIVETRAIN_CPUU"));
  EXPECT_THAT(names(groups.launcher), ElementsAre("OMPI_COMM_WORLD_RANK", "RANK"));
  EXPECT_THAT(names(groups.libraries), ElementsAre("NCCL_DEBUG", "OMP_NUM_THREADS"));
}

TEST(EnvJson, HoldsEveryFact) {
  Facts facts;
  facts.version = "1.2.3";
  facts.system.machine_memory = 2048;
  facts.system.shm = hardware::Space{64, 32};
  facts.system.open_files = {1024, hardware::kUnlimited};
  facts.programs = {{"mpirun", "/usr/bin/mpirun"}, {"srun", ""}};
  facts.environment = {{"DRIVETRAIN_CPUU", "1"}, {"RANK", "1"}, {"HOME", "/h"}};
  facts.unknown_variables = {{"DRIVETRAIN_CPUU", "DRIVETRAIN_CPU"}};
  hardware::DriverFound driver;
  driver.row = &hardware::driver_rows()[0];
  driver.devices = {"/dev/nvidia0"};
  facts.drivers = {driver};
  facts.probe.document = Json::parse(kAnswer);
  const Json json = to_json(facts);
  EXPECT_EQ(json["drivetrain"]["version"], "1.2.3");
  EXPECT_EQ(json["memory"]["machine_bytes"], 2048);
  EXPECT_EQ(json["memory"]["shm_available_bytes"], 32);
  EXPECT_EQ(json["limits"]["open_files"]["soft"], 1024);
  EXPECT_EQ(json["limits"]["open_files"]["hard"], "unlimited");
  EXPECT_EQ(json["programs"]["srun"], nullptr);
  EXPECT_EQ(json["drivers"][0]["vendor"], "NVIDIA");
  EXPECT_EQ(json["environment"][0],
            Json({{"name", "DRIVETRAIN_CPUU"}, {"value", "1"}, {"read_by", "nothing: unknown"}}));
  EXPECT_EQ(json["environment"].size(), 2U);
  EXPECT_EQ(json["libtorch"]["version"], "2.13.0");
  EXPECT_EQ(json["accelerators"].size(), 2U);
}

TEST(EnvText, IsAlignedAndHasUnits) {
  const Json sections = {
      {"memory", {{"machine_bytes", 1073741824}, {"free", nullptr}}},
      {"limits", {{"open_files", {{"soft", 1}, {"hard", "unlimited"}}}}},
      {"drivers", Json::array()},
      {"accelerators",
       {{{"name", "cpu"},
         {"reason", ""},
         {"synchronous", true},
         {"devices", {{{"index", 0}, {"memory_bytes", 2048}, {"errors", Json::array()}}}}}}}};
  EXPECT_EQ(to_text(sections),
            "memory\n"
            "  machine  1.0 GiB\n"
            "  free     none\n"
            "\n"
            "limits\n"
            "  open files  soft 1, hard unlimited\n"
            "\n"
            "drivers\n"
            "  none\n"
            "\n"
            "accelerators\n"
            "  cpu    synchronous yes\n"
            "    devices\n"
            "      0  memory 2.0 KiB\n");
}

TEST(EnvOptions, AreCheckedAndSuggestTheNearest) {
  const auto read = [](const std::vector<std::string>& arguments) {
    CLI::App app("", "drivetrain env");
    ProbeOptions options;
    declare(app, options);
    std::ostringstream out;
    EXPECT_TRUE(parse(app, arguments, out));
    return options.limit();
  };
  EXPECT_EQ(read({}), 30s);
  EXPECT_EQ(read({"--timeout", "0.5"}), 500ms);
  EXPECT_ERROR(read({"--jsn"}), ConfigError, "unknown argument --jsn; did you mean --json?");
  EXPECT_ERROR(read({"extra"}), ConfigError, "unknown argument extra; allowed: --help, --json");
  EXPECT_ERROR(read({"--timeout", "soon"}), ConfigError, "--timeout is \"soon\"");
  EXPECT_ERROR(read({"--timeout", "0"}), ConfigError, "allowed: a number from 0.1 to 3600");
  EXPECT_ERROR(read({"--timeout"}), ConfigError, "see drivetrain env --help");
}

// The real command and the real helper.
TEST(EnvCommand, MergesWhatLibTorchSays) {
  const ShellResult result = run_shell(DRIVETRAIN_COMMAND " env --json");
  ASSERT_EQ(result.code, 0);
  const Json json = Json::parse(result.text);
  EXPECT_EQ(json["probe"]["state"], "answered") << result.text;
  EXPECT_EQ(json["libtorch"]["version"], DRIVETRAIN_TORCH_VERSION);
  EXPECT_EQ(json["libtorch"]["built_with"], DRIVETRAIN_TORCH_VERSION);
  EXPECT_TRUE(
      std::filesystem::exists(json["libtorch"]["folder"].get<std::string>() + "/libtorch_cpu.so"));
  EXPECT_EQ(json["communication"][0]["name"], "gloo");
  EXPECT_EQ(json["communication"][0]["built"], true);
  const Json& cpu = json["accelerators"].back();
  EXPECT_EQ(cpu["name"], "cpu");
  EXPECT_EQ(cpu["devices"][0]["name"], json["processor"]["name"]);
  EXPECT_EQ(cpu["devices"][0]["processors"], json["processor"]["usable_cores"]);
  EXPECT_EQ(cpu["devices"][0]["memory_bytes"], json["memory"]["allowed_bytes"]);
  EXPECT_EQ(json["detection"]["problem"], "");
  for (const Json& one : json["accelerators"]) EXPECT_NE(one["reason"], "") << one;
}

TEST(EnvCommand, WorksWithoutLibTorch) {
  const ShellResult result = run_shell(DRIVETRAIN_COMMAND " env --probe /nowhere/probe");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.text, HasSubstr("\nprocessor\n"));
  EXPECT_THAT(result.text, HasSubstr("not found or not executable: /nowhere/probe"));
  EXPECT_THAT(result.text, Not(HasSubstr("\nlibtorch\n")));
}

TEST(EnvCommand, FlagsUnknownVariables) {
  const ShellResult result =
      run_shell("DRIVETRAIN_CPUU=1 " DRIVETRAIN_COMMAND " env --probe /nowhere/probe");
  EXPECT_THAT(result.text, HasSubstr("DRIVETRAIN_CPUU  value 1, read by nothing: unknown"));
}

TEST(EnvCommand, ShowsBytesThatAreNoText) {
  const ShellResult result =
      run_shell("RANK=\"$(printf '\\377')\" " DRIVETRAIN_COMMAND " env --json --probe /nowhere");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(Json::parse(result.text)["environment"][0]["name"], "RANK");
}

TEST(EnvCommand, AWrongChoiceIsPartOfTheReport) {
  const ShellResult result =
      run_shell("DRIVETRAIN_ACCELERATOR=cpuu " DRIVETRAIN_COMMAND " env --json");
  const Json json = Json::parse(result.text);
  EXPECT_THAT(json["detection"]["problem"].get<std::string>(), HasSubstr("did you mean \"cpu\"?"));
  EXPECT_EQ(json["accelerators"].back()["name"], "cpu");
}

}  // namespace
}  // namespace drivetrain::cli
