// SPDX-License-Identifier: Apache-2.0
#include <drivetrain/config.h>
#include <drivetrain/error.h>

#include "clean_env.h"
#include "config/launchers.h"
#include "expect_error.h"

namespace drivetrain {
namespace {

using Variables = std::map<std::string, std::string>;

ProcessFacts facts_of(const Variables& variables) {
  CleanEnv env(variables);
  return ProcessFacts::from_environment();
}

void expect_one(const Variables& variables) {
  const ProcessFacts facts = facts_of(variables);
  EXPECT_EQ(facts.world_size, 1);
  EXPECT_EQ(facts.rank, 0);
  EXPECT_EQ(facts.num_nodes, 1);
  EXPECT_EQ(facts.local_world_size, 1);
}

TEST(ProcessFacts, NothingSetIsAWorldOfOne) {
  expect_one({});
  EXPECT_EQ(facts_of({}).source, "none");
  expect_one({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
}

TEST(ProcessFacts, ReadsTorchrun) {
  const ProcessFacts facts = facts_of({{"RANK", "5"},
                                       {"WORLD_SIZE", "8"},
                                       {"LOCAL_RANK", "1"},
                                       {"LOCAL_WORLD_SIZE", "4"},
                                       {"GROUP_RANK", "1"},
                                       {"GROUP_WORLD_SIZE", "2"},
                                       {"MASTER_ADDR", "10.0.0.7"},
                                       {"MASTER_PORT", "29501"},
                                       {"TORCHELASTIC_RUN_ID", "job7"},
                                       {"TORCHELASTIC_RESTART_COUNT", "2"},
                                       {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(facts.source, "torchrun");
  EXPECT_EQ(facts.rank, 5);
  EXPECT_EQ(facts.world_size, 8);
  EXPECT_EQ(facts.local_rank, 1);
  EXPECT_EQ(facts.local_world_size, 4);
  EXPECT_EQ(facts.node_rank, 1);
  EXPECT_EQ(facts.num_nodes, 2);
  EXPECT_EQ(facts.main_address, "10.0.0.7");
  EXPECT_EQ(facts.main_port, 29501);
  EXPECT_EQ(facts.run_id, "job7/2");
  EXPECT_TRUE(facts.store_is_served);
  EXPECT_FALSE(facts.store_fd);
}

TEST(ProcessFacts, HandSetVariablesNeedOnlyRankSizeAndPort) {
  const ProcessFacts facts =
      facts_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "5000"}});
  EXPECT_EQ(facts.main_address, "127.0.0.1");
  EXPECT_EQ(facts.local_rank, 1);
  EXPECT_EQ(facts.local_world_size, 2);
  EXPECT_EQ(facts.num_nodes, 1);
  EXPECT_FALSE(facts.store_is_served);
}

TEST(ProcessFacts, OnlyRankZeroTakesTheInheritedSocket) {
  Variables variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "5000"}, {"DRIVETRAIN_STORE_FD", "9"}};
  EXPECT_EQ(facts_of(variables).store_fd, 9);
  variables["RANK"] = "1";
  EXPECT_FALSE(facts_of(variables).store_fd);
}

TEST(ProcessFacts, ReadsOpenMpi) {
  Variables variables = {{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                         {"PMIX_NAMESPACE", "3412983809"}};
  const ProcessFacts facts = facts_of(variables);
  EXPECT_EQ(facts.source, "openmpi");
  EXPECT_EQ(facts.rank, 3);
  EXPECT_EQ(facts.local_rank, 3);
  EXPECT_EQ(facts.num_nodes, 1);
  EXPECT_EQ(facts.main_address, "127.0.0.1");
  EXPECT_GE(facts.main_port, 15000);
  EXPECT_LT(facts.main_port, 30000);
  variables["OMPI_COMM_WORLD_RANK"] = "0";
  variables["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  EXPECT_EQ(facts_of(variables).main_port, facts.main_port);
  variables["PMIX_NAMESPACE"] = "3412983810";
  EXPECT_NE(facts_of(variables).main_port, facts.main_port);
  variables["MASTER_PORT"] = "4567";
  EXPECT_EQ(facts_of(variables).main_port, 4567);
}

TEST(ProcessFacts, SeveralMachinesNeedAnAddress) {
  Variables variables = {{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_NAMESPACE", "7"}};
  EXPECT_ERROR(facts_of(variables), ConfigError,
               "there are 2 machines, but MASTER_ADDR is not set; allowed: the name or address");
  variables["MASTER_ADDR"] = "node1";
  EXPECT_EQ(facts_of(variables).node_rank, 1);
  EXPECT_EQ(facts_of(variables).main_address, "node1");
}

TEST(ProcessFacts, ReadsPmiAndMvapich) {
  const ProcessFacts pmi = facts_of({{"PMI_RANK", "2"},
                                     {"PMI_SIZE", "4"},
                                     {"MPI_LOCALRANKID", "0"},
                                     {"MPI_LOCALNRANKS", "2"},
                                     {"MASTER_ADDR", "node1"},
                                     {"MASTER_PORT", "5000"}});
  EXPECT_EQ(pmi.source, "pmi");
  EXPECT_EQ(pmi.local_rank, 0);
  EXPECT_EQ(pmi.node_rank, 1);
  EXPECT_EQ(pmi.num_nodes, 2);
  const ProcessFacts mvapich = facts_of({{"MV2_COMM_WORLD_RANK", "1"},
                                         {"MV2_COMM_WORLD_SIZE", "2"},
                                         {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                                         {"MV2_COMM_WORLD_LOCAL_SIZE", "2"},
                                         {"MASTER_PORT", "5000"}});
  EXPECT_EQ(mvapich.rank, 1);
  EXPECT_EQ(mvapich.local_world_size, 2);
}

TEST(ProcessFacts, PmiWithoutAJobIdNeedsAPort) {
  EXPECT_ERROR(facts_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), ConfigError,
               "MASTER_PORT is not set for a world of 2; allowed: a free port");
}

const Variables kSlurmStep = {{"SLURM_PROCID", "5"},
                              {"SLURM_NTASKS", "7"},
                              {"SLURM_STEP_NUM_TASKS", "7"},
                              {"SLURM_LOCALID", "1"},
                              {"SLURM_NODEID", "1"},
                              {"SLURM_STEP_NUM_NODES", "2"},
                              {"SLURM_STEP_TASKS_PER_NODE", "4,3"},
                              {"SLURM_STEP_NODELIST", "rack2-node[07-08]"},
                              {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"},
                              {"SLURM_STEP_ID", "0"},
                              {"SLURM_JOB_ID", "4711"}};

TEST(ProcessFacts, ReadsAStepOfSlurm) {
  const ProcessFacts facts = facts_of(kSlurmStep);
  EXPECT_EQ(facts.source, "slurm");
  EXPECT_EQ(facts.rank, 5);
  EXPECT_EQ(facts.world_size, 7);
  EXPECT_EQ(facts.local_rank, 1);
  EXPECT_EQ(facts.local_world_size, 3);
  EXPECT_EQ(facts.node_rank, 1);
  EXPECT_EQ(facts.num_nodes, 2);
  EXPECT_EQ(facts.main_address, "rack2-node07");
  Variables next_step = kSlurmStep;
  next_step["SLURM_STEP_ID"] = "1";
  EXPECT_NE(facts_of(next_step).main_port, facts.main_port);
  EXPECT_NE(facts_of(next_step).run_id, facts.run_id);
}

TEST(ProcessFacts, AShellInASlurmAllocationIsAWorldOfOne) {
  // The shell of salloc: sizes, but no rank.
  expect_one({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "1"}, {"SLURM_NNODES", "1"}});
  // The batch script: rank 0 of all tasks, but not started by srun.
  Variables batch = kSlurmStep;
  batch["SLURM_PROCID"] = "0";
  batch.erase("SLURM_STEP_ID");
  expect_one(batch);
  // The interactive step has a reserved number.
  Variables interactive = kSlurmStep;
  interactive["SLURM_STEP_ID"] = "4294967290";
  expect_one(interactive);
}

TEST(ProcessFacts, NodeListsAndTaskCounts) {
  using config::first_host;
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("node[03-05,9],gpu1"), "node03");
  EXPECT_EQ(first_host("r[1-2]n[3,5]-ib"), "r1n3-ib");
  EXPECT_EQ(first_host("node[1"), "node1");
  const auto tasks = [](const char* text, int node) { return config::tasks_on_node(text, node); };
  EXPECT_EQ(tasks("4(x2),3", 0), 4);
  EXPECT_EQ(tasks("4(x2),3", 1), 4);
  EXPECT_EQ(tasks("4(x2),3", 2), 3);
  EXPECT_EQ(tasks("4(x2),3", 3), std::nullopt);
  EXPECT_ERROR(tasks("many", 0), ConfigError, "SLURM_STEP_TASKS_PER_NODE is \"many\"");
}

TEST(ProcessFacts, IncompleteOrContradictoryVariablesAreRefused) {
  struct Case {
    Variables variables;
    const char* text;
  };
  const Variables good = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "5000"}};
  const auto with = [&good](const Variables& more) {
    Variables all = more;
    all.insert(good.begin(), good.end());
    return all;
  };
  const Case cases[] = {
      {{{"RANK", "0"}}, "RANK is set, but WORLD_SIZE is not; allowed: both or none"},
      {{{"WORLD_SIZE", "2"}}, "WORLD_SIZE is set, but RANK is not"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "the rank is 2 of 2 (from torchrun's variables)"},
      {{{"RANK", "x"}, {"WORLD_SIZE", "2"}}, "RANK is \"x\"; allowed: a whole number"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE is \"0\"; allowed: a whole number from 1"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_PORT is not set for a world of 2"},
      {with({{"MASTER_PORT", "0"}}),
       "MASTER_PORT is \"0\"; allowed: a whole number from 1 to 65535"},
      {with({{"LOCAL_RANK", "3"}}), "the local rank is 3 of 2"},
      {with({{"LOCAL_WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}}),
       "the local world size is 4, but the world size is 2"},
      {with({{"GROUP_RANK", "1"}}), "the node rank is 1 of 1"},
      {with({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
       "RANK is 1, but openmpi says that this is rank 0 of the same 2"},
      {{{"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_SIZE is set, but OMPI_COMM_WORLD_RANK"},
  };
  for (const Case& each : cases) EXPECT_ERROR(facts_of(each.variables), ConfigError, each.text);
  EXPECT_ERROR(facts_of({{"RANK", "0"},
                         {"WORLD_SIZE", "2"},
                         {"MASTER_PORT", "5000"},
                         {"DRIVETRAIN_STORE_FD", "5"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"}}),
               ConfigError, "DRIVETRAIN_STORE_FD is 5, but TORCHELASTIC_USE_AGENT_STORE says");
}

TEST(ProcessFacts, ALauncherInsideAnothersStepWins) {
  Variables variables = kSlurmStep;
  variables.insert({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "5000"}});
  EXPECT_EQ(facts_of(variables).source, "torchrun");
  EXPECT_EQ(facts_of(variables).world_size, 2);
  // Even of the same size: torchrun numbers its ranks as it likes.
  variables["WORLD_SIZE"] = "7";
  variables["TORCHELASTIC_RUN_ID"] = "x";
  EXPECT_EQ(facts_of(variables).rank, 0);
}

}  // namespace
}  // namespace drivetrain
