"""What the test cluster needs from the machine (programs, rights, free ports), and the processes of a folder."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
ACCOUNTING = ("mariadb-admin", "mariadb-install-db", "mariadbd", "sacct", "sacctmgr", "slurmdbd")
TOOLS = ("munge", "sbatch", "scontrol", "sinfo", "srun", "unshare", "setpriv")
SEARCH_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
NAMESPACES = ("--uts", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--kill-child=KILL")
# Below the usual ephemeral range, so that no outgoing connection gets the port of a daemon that is restarting.
PORTS = range(12000, 32000)


def missing(accounting: bool = True) -> str:
    """Why a lab cannot run here and what to do; empty if it can."""
    wanted = DAEMONS + TOOLS + (ACCOUNTING if accounting else ())
    absent = [name for name in wanted if shutil.which(name, path=SEARCH_PATH) is None]
    if absent:
        return f"no {', '.join(absent)}; scripts/setup --slurm installs Debian's packages (as root)"
    if os.geteuid() != 0:
        return "the Slurm lab needs root: it makes namespaces and device files"
    tried = subprocess.run(["unshare", *NAMESPACES, "true"], capture_output=True, text=True)
    if tried.returncode:
        return f"may not unshare namespaces: {tried.stderr.strip()}"
    return ""


def free_ports(count: int) -> list[int]:
    """Consecutive TCP ports on which nothing listens at any address. RuntimeError if none are found."""
    for _ in range(200):
        first = random.choice(PORTS)
        ports = list(range(first, first + count))
        if all(is_free(port) for port in ports):
            return ports
    raise RuntimeError(f"no {count} consecutive free ports between {PORTS.start} and {PORTS.stop}")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections in TIME_WAIT do not count
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def processes_of(folder: Path) -> dict[int, str]:
    """Pid -> command line of every process with a folder in its arguments or in its initial environment."""
    found = {}
    for proc in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            command = (proc / "cmdline").read_bytes()
            if (
                os.fsencode(folder) in command + b"\0" + (proc / "environ").read_bytes()
                and int(proc.name) != os.getpid()
            ):
                found[int(proc.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found
