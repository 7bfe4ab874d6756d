# SPDX-License-Identifier: Apache-2.0
"""One program, started by every launcher: the same result.

usage: launchers_test.py DRIVETRAIN PROGRAM TORCHRUN
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import unittest

DRIVETRAIN, PROGRAM, TORCHRUN = sys.argv[1:4]
LAUNCHER_VARIABLES = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_.*|GROUP_.*|ROLE_.*|MASTER_.*|OMPI_.*|PMI.*|SLURM_.*|TORCHELASTIC_.*|"
    r"DRIVETRAIN_.*)$")


def clean_environment():
    return {k: v for k, v in os.environ.items() if not LAUNCHER_VARIABLES.match(k)}


def start(command, **variables):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**clean_environment(), **variables})


def checksums(processes, count):
    """What the ranks printed, in their order. Fails unless each of `count` printed once."""
    found, errors = {}, ""
    for process in processes:
        output, error = process.communicate(timeout=100)
        errors += error
        for rank, size, checksum in re.findall(r"rank (\d+) of (\d+) checksum ([\d.]+)", output):
            assert int(size) == count, f"rank {rank} found a world of {size}, not {count}"
            found[int(rank)] = float(checksum)
    assert sorted(found) == list(range(count)), f"ranks {sorted(found)} of {count}:\n{errors}"
    return [found[rank] for rank in range(count)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Launchers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.alone = checksums([start([PROGRAM])], 1)[0]

    def assert_same(self, values):
        self.assertEqual(len(set(values)), 1, "ranks differ")
        self.assertAlmostEqual(values[0], self.alone, delta=1e-5)

    def test_drivetrain_launch(self):
        for count in (2, 3):
            command = [DRIVETRAIN, "launch", "--cpu", "--num-processes", str(count), PROGRAM]
            self.assert_same(checksums([start(command)], count))

    def test_variables_set_by_hand(self):
        port = free_port()
        ranks = [start([PROGRAM], RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=port) for rank in range(2)]
        self.assert_same(checksums(ranks, 2))

    @unittest.skipUnless(os.access(TORCHRUN, os.X_OK), "this LibTorch came without torchrun")
    def test_torchrun(self):
        command = [TORCHRUN, "--no-python", "--nproc-per-node", "2", "--master-port", free_port(),
                   PROGRAM]
        self.assert_same(checksums([start(command)], 2))

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_mpirun(self):
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", PROGRAM]
        self.assert_same(checksums([start(command)], 2))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
