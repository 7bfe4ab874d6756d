// SPDX-License-Identifier: Apache-2.0
// The checks on made-up machines: one thing wrong at a time, told apart from its likes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/doctor/checks.h"
#include "cli/launch/port.h"
#include "run_shell.h"

namespace drivetrain::cli {
namespace {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kMiB = int64_t{1} << 20;

const hardware::DriverRow& row_of(const std::string& vendor) {
  for (const hardware::DriverRow& row : hardware::driver_rows())
    if (row.vendor == vendor) return row;
  throw std::runtime_error("no row of " + vendor);
}

hardware::DriverFound driver_of(const std::string& vendor, const std::string& version,
                                int devices) {
  hardware::DriverFound driver;
  driver.row = &row_of(vendor);
  driver.is_loaded = true;
  driver.version = version;
  for (int i = 0; i < devices; ++i)
    driver.devices.push_back(std::string(driver.row->device_prefix) + std::to_string(i));
  driver.computing = devices;
  driver.is_for_computing = true;
  return driver;
}

// A server of 16 cores without an accelerator, where all is well.
Case healthy() {
  Case patient;
  Facts& facts = patient.facts;
  facts.version = "0.1.0";
  facts.system.cores = facts.system.allowed_cores = 16;
  facts.system.machine_memory = facts.system.memory.total = 64 * kGiB;
  facts.system.memory.available = 60 * kGiB;
  facts.system.shm = hardware::Space{32 * kGiB, 32 * kGiB};
  facts.system.open_files = {4096, 1 << 20};
  facts.system.clock_is_synchronized = true;
  facts.probe.state = ProbeState::answered;
  facts.probe.version = facts.probe.built_with = "2.13.0";
  facts.probe.libraries = {{"libtorch_cuda.so", false, false},
                           {"libtorch_hip.so", false, false},
                           {"libtorch_xpu.so", false, false}};
  facts.probe.backends = {{"cuda", "this LibTorch was built without it", 0, "", {}},
                          {"cpu", "", 1, "", {}}};
  patient.network.hostname = Lookup{"node", {"10.0.0.2"}, "", 0.001};
  patient.now = 2'000'000;
  patient.command_written = 1'000'000;
  return patient;
}

// The same with four GPUs and LibTorch for them.
Case with_gpus() {
  Case patient = healthy();
  patient.facts.drivers = {driver_of("NVIDIA", "570.10", 4)};
  patient.facts.probe.libraries[0] = {"libtorch_cuda.so", true, true};
  patient.facts.probe.backends[0] = {"cuda", "", 4, "12.8", {}};
  patient.ranks = 4;
  return patient;
}

std::string describe(const Findings& findings) {
  std::string text;
  for (const Finding& one : findings)
    text += std::string(name_of(one.level)) + " | " + one.check + " | " + one.found + " | " +
            one.advice + "\n";
  return text;
}

struct Row {
  const char* name;
  Case (*base)();
  std::function<void(Case&)> change;
  Level level;
  const char* found;   // part of it
  const char* advice;  // part of it
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

class Sick : public ::testing::TestWithParam<Row> {};

// One finding that is not ok, and it is this one.
TEST_P(Sick, IsToldApart) {
  const Row& row = GetParam();
  Case patient = row.base();
  row.change(patient);
  Findings wrong;
  for (const Finding& finding : examine(patient)) {
    EXPECT_EQ(finding.advice.empty(), finding.level == Level::ok) << finding.check;
    if (finding.level != Level::ok) wrong.push_back(finding);
  }
  ASSERT_EQ(wrong.size(), 1U) << describe(wrong);
  EXPECT_EQ(wrong[0].level, row.level) << describe(wrong);
  EXPECT_THAT(wrong[0].found, HasSubstr(row.found));
  EXPECT_THAT(wrong[0].advice, HasSubstr(row.advice));
}

void not_answered(Case& patient, ProbeState state, const std::string& problem) {
  Probe& probe = patient.facts.probe;
  probe = Probe();
  probe.state = state;
  probe.problem = problem;
  probe.lines = {"drivetrain-probe: asking for cuda"};
}

const Row kProbeRows[] = {
    {"HelperMissing", healthy,
     [](Case& c) { not_answered(c, ProbeState::missing, "not found: /x"); }, Level::problem,
     "drivetrain-probe was not found: /x", "cmake --install"},
    {"LibTorchMissing", healthy,
     [](Case& c) {
       not_answered(c, ProbeState::not_loaded,
                    "error while loading shared libraries: libtorch_cpu.so: cannot open");
     },
     Level::problem, "libtorch_cpu.so: cannot open", "set LD_LIBRARY_PATH to its folder"},
    {"OtherAbi", healthy,
     [](Case& c) {
       not_answered(c, ProbeState::not_loaded, "symbol lookup error: x: undefined symbol: _ZN3c10");
     },
     Level::problem, "undefined symbol", "another version or C++ ABI"},
    {"OldStandardLibrary", healthy,
     [](Case& c) { not_answered(c, ProbeState::not_loaded, "version `GLIBCXX_3.4.32' not found"); },
     Level::problem, "GLIBCXX_3.4.32", "older than the one of the build"},
    {"DriverCrashes", healthy,
     [](Case& c) { not_answered(c, ProbeState::crashed, "ended by SIGSEGV"); }, Level::problem,
     "crashed: ended by SIGSEGV; it wrote: drivetrain-probe: asking for cuda", "hide that"},
    {"DriverHangs", healthy,
     [](Case& c) { not_answered(c, ProbeState::timed_out, "no answer within 30 s"); },
     Level::problem, "hangs: no answer within 30 s; it wrote", "the kernel's log"},
    {"HelperOfAnotherVersion", healthy,
     [](Case& c) { not_answered(c, ProbeState::failed, "its answer is not what"); }, Level::problem,
     "drivetrain-probe failed: its answer", "of one version"},
    {"OtherLibTorch", healthy, [](Case& c) { c.facts.probe.version = "2.12.1"; }, Level::problem,
     "LibTorch 2.12.1 is loaded, but Drivetrain was built with 2.13.0", "build Drivetrain against"},
    {"UnknownAccelerator", healthy,
     [](Case& c) { c.facts.probe.detection_problem = "\"cpuu\" is not registered"; },
     Level::problem, "\"cpuu\" is not registered", "DRIVETRAIN_ACCELERATOR"},
};
INSTANTIATE_TEST_SUITE_P(Probe, Sick, ::testing::ValuesIn(kProbeRows),
                         [](const auto& test) { return test.param.name; });

const Row kDeviceRows[] = {
    {"CpuBuild", with_gpus,
     [](Case& c) { c.facts.probe.libraries[0] = {"libtorch_cuda.so", false, false}; },
     Level::problem, "LibTorch 2.13.0 is a build without cuda (no libtorch_cuda.so)",
     "install the LibTorch build for cuda"},
    {"NotLinked", with_gpus,
     [](Case& c) { c.facts.probe.libraries[0] = {"libtorch_cuda.so", true, false}; },
     Level::problem, "LibTorch has libtorch_cuda.so, but it is not linked", "--as-needed"},
    {"NoDriver", with_gpus,
     [](Case& c) {
       c.facts.drivers.clear();
       c.ranks = 1;
     },
     Level::warning,
     "LibTorch is built for cuda, but there is no driver (/proc/driver/nvidia/version)",
     "install the driver"},
    {"DriverNotLoaded", with_gpus, [](Case& c) { c.facts.drivers[0].is_loaded = false; },
     Level::problem, "/dev/nvidia0 is there, but no driver: /proc/driver/nvidia/version is missing",
     "load the NVIDIA driver"},
    {"OldDriver", with_gpus,
     [](Case& c) {
       c.facts.drivers[0].version = "470.82.01";
       c.facts.probe.backends[0] = {"cuda", "LibTorch finds no device", 0, "12.8", {}};
     },
     Level::problem, "driver 470.82.01 is older than what LibTorch's runtime 12.8 needs: 525.60.13",
     "install driver 525.60.13 or newer"},
    {"ContainerWithoutDevices", with_gpus,
     [](Case& c) {
       c.facts.drivers[0].devices.clear();
       c.facts.drivers[0].computing = 0;
     },
     Level::warning, "the NVIDIA driver 570.10 is loaded, but there is no /dev/nvidia0",
     "--gpus all"},
    {"NotAllowed", with_gpus,
     [](Case& c) { c.facts.drivers[0].refused = c.facts.drivers[0].devices; }, Level::problem,
     "/dev/nvidia0 may not be opened by this user", "join the group"},
    {"Hidden", with_gpus, [](Case& c) { c.facts.environment["CUDA_VISIBLE_DEVICES"] = "-1"; },
     Level::warning, "CUDA_VISIBLE_DEVICES is \"-1\": it hides all 4 devices",
     "unset CUDA_VISIBLE_DEVICES"},
    {"HiddenByNothing", with_gpus,
     [](Case& c) { c.facts.environment["CUDA_VISIBLE_DEVICES"] = ""; }, Level::warning,
     "is \"\": it hides all 4", "unset"},
    {"WrongList", with_gpus,
     [](Case& c) { c.facts.environment["CUDA_VISIBLE_DEVICES"] = "0,gpu1"; }, Level::problem,
     "CUDA_VISIBLE_DEVICES is \"0,gpu1\": \"gpu1\" names no device", "correct or unset"},
    {"BrokenDriver", with_gpus,
     [](Case& c) {
       c.facts.probe.backends[0] = {"cuda", "LibTorch has it, but finds no device", 0, "12.8", {}};
       c.facts.probe.lines = {"Warning: CUDA initialization: error 999"};
     },
     Level::problem,
     "/dev/nvidia0 is there, but cuda is not available: LibTorch has it, but finds no device; it "
     "wrote: Warning: CUDA initialization: error 999",
     "see what nvidia-smi says"},
    {"PluginMissing", healthy,
     [](Case& c) {
       c.facts.drivers = {driver_of("Huawei", "23.0", 8)};
       c.facts.probe.backends.push_back({"npu", "no plugin is loaded", 0, "", {}});
     },
     Level::problem, "/dev/davinci0 is there, but npu is not available: no plugin is loaded",
     "load the plugin that registers npu"},
    {"FewerSeen", with_gpus, [](Case& c) { c.facts.probe.backends[0].devices = 3; }, Level::warning,
     "3 of 4 devices, driver 570.10, runtime 12.8", "nvidia-smi"},
    {"DeviceFails", with_gpus,
     [](Case& c) {
       c.facts.probe.backends[0].device_errors = {"device 2: uncorrectable ECC error"};
     },
     Level::problem, "device 2: uncorrectable ECC error", "repair the device"},
};
INSTANTIATE_TEST_SUITE_P(Devices, Sick, ::testing::ValuesIn(kDeviceRows),
                         [](const auto& test) { return test.param.name; });

const Row kLimitRows[] = {
    {"TooFewCores", healthy, [](Case& c) { c.ranks = 17; }, Level::warning, "16 cores for 17 ranks",
     "start fewer ranks"},
    {"NarrowMask", healthy,
     [](Case& c) {
       c.facts.system.allowed_cores = 2;
       c.ranks = 4;
     },
     Level::warning, "2 cores for 4 ranks (the machine has 16)", "widen the affinity mask"},
    {"Quota", healthy,
     [](Case& c) {
       c.facts.system.quota = 1.5;
       c.ranks = 2;
     },
     Level::warning, "1 cores for 2 ranks (the machine has 16)", "CPU limit"},
    {"TooManyThreads", healthy,
     [](Case& c) {
       c.facts.environment["OMP_NUM_THREADS"] = "16";
       c.ranks = 4;
     },
     Level::warning, "OMP_NUM_THREADS is 16: 64 threads on 16 cores", "unset it"},
    {"LittleMemory", healthy, [](Case& c) { c.facts.system.memory.available = 512 * kMiB; },
     Level::warning, "512.0 MiB a rank", "fewer ranks"},
    {"NoMemory", healthy,
     [](Case& c) {
       c.facts.system.memory = {512 * kMiB, 400 * kMiB};
       c.ranks = 2;
     },
     Level::problem, "that a control group allows (the machine has 64.0 GiB): 200.0 MiB a rank",
     "memory limit"},
    {"SmallShm", with_gpus,
     [](Case& c) { c.facts.system.shm = hardware::Space{64 * kMiB, 64 * kMiB}; }, Level::problem,
     "/dev/shm has 64.0 MiB free of 64.0 MiB; 4 ranks may need 256.0 MiB", "--shm-size"},
    {"SmallShmOnTheCpu", healthy,
     [](Case& c) { c.facts.system.shm = hardware::Space{64 * kMiB, 1 * kMiB}; }, Level::warning,
     "/dev/shm has 1.0 MiB free", "remove what old processes left"},
    {"NoShm", healthy, [](Case& c) { c.facts.system.shm.reset(); }, Level::warning,
     "there is no /dev/shm", "--ipc=host"},
    {"FewFiles", healthy, [](Case& c) { c.facts.system.open_files = {512, 1 << 20}; },
     Level::warning, "limit 512 (hard 1048576)", "ulimit -n 4096"},
    {"TooFewFiles", healthy, [](Case& c) { c.facts.system.open_files = {256, 256}; },
     Level::problem, "limit 256 (hard 256); 1 ranks may need 264", "raise the hard limit"},
    {"FewProcesses", healthy, [](Case& c) { c.facts.system.processes = {32, 32}; }, Level::warning,
     "limit 32; the threads of 1 ranks may need 64", "ulimit -u 128"},
    {"AddressSpace", healthy, [](Case& c) { c.facts.system.address_space = {8 * kGiB, -1}; },
     Level::warning, "limited to 8.0 GiB", "ulimit -v unlimited"},
    {"AddressSpaceWithDevices", with_gpus,
     [](Case& c) { c.facts.system.address_space = {8 * kGiB, -1}; }, Level::problem,
     "limited to 8.0 GiB", "ulimit -v unlimited"},
    {"LockedMemory", healthy,
     [](Case& c) {
       c.facts.system.has_infiniband = true;
       c.facts.system.locked_memory = {64 << 10, 64 << 10};
     },
     Level::problem, "limited to 64.0 KiB, but InfiniBand", "ulimit -l unlimited"},
};
INSTANTIATE_TEST_SUITE_P(Limits, Sick, ::testing::ValuesIn(kLimitRows),
                         [](const auto& test) { return test.param.name; });

void set_by_hand(Case& patient) {
  patient.facts.environment["RANK"] = "1";
  patient.facts.environment["WORLD_SIZE"] = "4";
  patient.facts.environment["MASTER_PORT"] = "29500";
  patient.facts.process.source = "torchrun";
  patient.facts.process.rank = 1;
  patient.facts.process.world_size = 4;
}

const Row kSettingRows[] = {
    {"UnknownVariable", healthy,
     [](Case& c) {
       c.facts.unknown_variables = {{"DRIVETRAIN_CPUU", "DRIVETRAIN_CPU"}};
       c.facts.settings_problem = "environment variable DRIVETRAIN_CPUU is unknown";
     },
     Level::problem, "DRIVETRAIN_CPUU is no setting; did you mean DRIVETRAIN_CPU?",
     "correct or unset"},
    {"WrongSetting", healthy,
     [](Case& c) { c.facts.settings_problem = "DRIVETRAIN_CPU is \"maybe\""; }, Level::problem,
     "DRIVETRAIN_CPU is \"maybe\"", "correct or unset"},
    {"RankByHand", healthy, set_by_hand, Level::warning,
     "RANK=1, WORLD_SIZE=4, MASTER_PORT=29500 outside of a launcher: a program started here is "
     "rank 1 and waits for 3 others",
     "drivetrain launch"},
    {"AddressByHand", healthy, [](Case& c) { c.facts.environment["MASTER_ADDR"] = "node0"; },
     Level::warning, "MASTER_ADDR=node0 outside of a launcher", "unset them"},
    {"HalfALauncher", healthy,
     [](Case& c) { c.facts.launcher_problem = "RANK is set, but WORLD_SIZE is not"; },
     Level::problem, "RANK is set, but WORLD_SIZE is not", "unset the variables"},
    {"NameDoesNotResolve", healthy,
     [](Case& c) { c.network.hostname = Lookup{"node", {}, "Name or service not known", 0.1}; },
     Level::problem, "node does not resolve: Name or service not known", "/etc/hosts"},
    {"NameResolvesSlowly", healthy, [](Case& c) { c.network.hostname->seconds = 4.5; },
     Level::warning, "node is 10.0.0.2, after 4.5 s", "name server"},
    {"NameIsTheLoopback", healthy,
     [](Case& c) {
       c.network.hostname->addresses = {"127.0.1.1"};
       c.facts.process.num_nodes = 2;
     },
     Level::warning, "node is only the loopback", "GLOO_SOCKET_IFNAME"},
    {"MainAddressUnknown", healthy,
     [](Case& c) { c.network.main_address = Lookup{"nod0", {}, "Name or service not known", 0}; },
     Level::problem, "nod0 does not resolve", "correct MASTER_ADDR"},
    {"PortBusy", healthy,
     [](Case& c) { c.network.store_port = StorePort{29500, "port 29500 is in use"}; },
     Level::problem, "port 29500 is in use", "ss -ltnp"},
    {"ClockBehind", healthy, [](Case& c) { c.now = 0; }, Level::problem, "it is 11 days behind",
     "set it"},
    {"ClockFree", healthy,
     [](Case& c) {
       c.facts.system.clock_is_synchronized = false;
       c.facts.process.num_nodes = 2;
     },
     Level::warning, "not synchronized", "chrony"},
};
INSTANTIATE_TEST_SUITE_P(Settings, Sick, ::testing::ValuesIn(kSettingRows),
                         [](const auto& test) { return test.param.name; });

// What must not be taken for a fault.
const Row kHealthyRows[] = {
    {"Server", healthy, [](Case&) {}, Level::ok, "the kernel shows no accelerator", ""},
    {"Gpus", with_gpus, [](Case&) {}, Level::ok, "4 of 4 devices, driver 570.10, runtime 12.8", ""},
    {"DevicesInUuidForm", with_gpus,
     [](Case& c) {
       c.facts.environment["CUDA_VISIBLE_DEVICES"] = "GPU-8932f937,MIG-GPU-8932f937/1/0";
       c.facts.probe.backends[0].devices = 2;
     },
     Level::ok, "2 of 4 devices", ""},
    {"Desktop", healthy,
     [](Case& c) {
       c.facts.drivers = {driver_of("Intel", "", 1)};
       c.facts.drivers[0].is_for_computing = false;
       c.facts.drivers[0].computing = 0;
     },
     Level::ok, "not counted as an accelerator", ""},
    {"PatchRelease", healthy, [](Case& c) { c.facts.probe.version = "2.13.1"; }, Level::ok,
     "LibTorch 2.13.1", ""},
    {"Launched", healthy,
     [](Case& c) {
       set_by_hand(c);
       c.facts.environment["TORCHELASTIC_RUN_ID"] = "x";
     },
     Level::ok, "rank 1 of 4, by torchrun", ""},
    {"MadeBySlurm", healthy,
     [](Case& c) {
       c.facts.process.source = "slurm";
       c.facts.process.world_size = 8;
     },
     Level::ok, "rank 0 of 8, by slurm", ""},
    {"LoopbackOnOneMachine", healthy,
     [](Case& c) { c.network.hostname->addresses = {"127.0.1.1"}; }, Level::ok, "node is 127.0.1.1",
     ""},
    {"ManyRanks", healthy,
     [](Case& c) {
       c.ranks = 16;
       c.facts.environment["OMP_NUM_THREADS"] = "1";
     },
     Level::ok, "16 cores for 16 ranks", ""},
    {"FreePort", healthy, [](Case& c) { c.network.store_port = StorePort{29500, ""}; }, Level::ok,
     "port 29500 is free", ""},
};

class Well : public ::testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(Machines, Well, ::testing::ValuesIn(kHealthyRows),
                         [](const auto& test) { return test.param.name; });

TEST_P(Well, IsNotTakenForSick) {
  Case patient = GetParam().base();
  GetParam().change(patient);
  const Findings findings = examine(patient);
  for (const Finding& finding : findings)
    EXPECT_EQ(finding.level, Level::ok) << describe({finding});
  EXPECT_THAT(describe(findings), HasSubstr(GetParam().found));
}

TEST(LookUp, FindsTheLoopback) {
  const Lookup lookup = look_up("localhost", 5s);
  EXPECT_EQ(lookup.problem, "");
  EXPECT_FALSE(lookup.addresses.empty());
}

TEST(LookUp, SaysWhatIsUnknown) {
  // .invalid is reserved: no name server may know it.
  const Lookup lookup = look_up("no-such-host.invalid", 10s);
  EXPECT_FALSE(lookup.problem.empty());
  EXPECT_TRUE(lookup.addresses.empty());
}

TEST(TryPort, TellsABusyOne) {
  const ListeningPort held = listen_on("", 0);
  const StorePort busy = try_port(held.port);
  EXPECT_THAT(busy.problem, HasSubstr("port " + std::to_string(held.port)));
  EXPECT_THAT(busy.problem, HasSubstr("is in use"));
}

TEST(TryPort, LeavesAFreeOneFree) {
  int port = 0;
  {
    const ListeningPort held = listen_on("", 0);
    port = held.port;
  }
  EXPECT_EQ(try_port(port).problem, "");
  EXPECT_EQ(try_port(port).problem, "");
}

// The real command.
TEST(DoctorCommand, ExitsWithOneForAProblemAndSaysWhatToDo) {
  const ShellResult result = run_shell(DRIVETRAIN_COMMAND " doctor --probe /nowhere/probe");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.text, HasSubstr("problem  LibTorch"));
  EXPECT_THAT(result.text, HasSubstr("-> install Drivetrain whole"));
  EXPECT_THAT(result.text, ::testing::ContainsRegex("\n[0-9]+ problems?, [0-9]+ warnings?\n$"));
}

TEST(DoctorCommand, CountsAsItsExitCodeSays) {
  const ShellResult result = run_shell(DRIVETRAIN_COMMAND " doctor --json");
  const Json json = Json::parse(result.text);
  int problems = 0;
  bool has_libtorch = false;
  for (const Json& check : json["checks"]) {
    problems += check["level"] == "problem" ? 1 : 0;
    has_libtorch = has_libtorch || check["found"] == "LibTorch " DRIVETRAIN_TORCH_VERSION;
  }
  EXPECT_EQ(json["problems"], problems);
  EXPECT_EQ(result.code, problems > 0 ? 1 : 0) << result.text;
  EXPECT_TRUE(has_libtorch) << result.text;
}

TEST(DoctorCommand, FindsWhatIsSetWrong) {
  const ShellResult result =
      run_shell("RANK=0 WORLD_SIZE=3 MASTER_PORT=29999 DRIVETRAIN_TIMEOT=3 " DRIVETRAIN_COMMAND
                " doctor -n 4096");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.text, HasSubstr("did you mean DRIVETRAIN_TIMEOUT?"));
  EXPECT_THAT(result.text, HasSubstr("RANK=0, WORLD_SIZE=3, MASTER_PORT=29999 outside"));
  EXPECT_THAT(result.text, HasSubstr(" cores for 4096 ranks"));
}

TEST(DoctorCommand, ChecksThePortThatItIsGiven) {
  const ListeningPort held = listen_on("", 0);
  const ShellResult result =
      run_shell(DRIVETRAIN_COMMAND " doctor --port " + std::to_string(held.port));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.text, HasSubstr("is in use"));
  EXPECT_EQ(run_shell(DRIVETRAIN_COMMAND " doctor --port 0 2>&1").code, 2);
  EXPECT_EQ(run_shell(DRIVETRAIN_COMMAND " doctor -n 0 2>&1").code, 2);
}

}  // namespace
}  // namespace drivetrain::cli
