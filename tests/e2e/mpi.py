"""What tests of several nodes share: how mpirun is started, when it cannot be, and the processes of its nodes."""
import os
import shutil

import pytest

from conftest import BUILD

# As root, more than there are cores, and on this machine alone: what tests are to mpirun.
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo",
       "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
HERE = bool(shutil.which("mpirun")) and (BUILD / "libevenkeel-mpi.so").exists()
without = pytest.mark.skipif(not HERE, reason="no mpirun, or built without libopenmpi-dev: tools/deps.sh test")


def nodes_of(control):
    """The pids of the nodes that were given this control socket, in their order."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ, open(f"/proc/{pid}/cmdline", "rb") as cmdline:
                env = dict(v.split(b"=", 1) for v in environ.read().split(b"\0") if b"=" in v)
                args = cmdline.read().split(b"\0")
        except OSError:
            continue
        if str(control).encode() in args and b"OMPI_COMM_WORLD_RANK" in env:
            found[int(env[b"OMPI_COMM_WORLD_RANK"])] = int(pid)
    return [found[n] for n in sorted(found)]
