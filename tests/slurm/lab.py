"""A real Slurm cluster of four nodes on this machine, for tests: private, started in seconds and stopped completely.

All files are in one folder: munge's key and socket, MariaDB's data, configuration, state, logs. /etc/slurm and
/run/munge are neither read nor changed, and ports are chosen at start, so labs run side by side and beside a cluster
that the machine belongs to. A node is one pid, mount and host-name namespace around one slurmd: it has its own host
name and /etc/hosts, and it dies like a machine, with everything that runs on it.

Needs root (namespaces, device files), util-linux, and Debian's packages of Slurm 22.05 or newer, MariaDB and munge.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from tests.slurm import lab_files
from tests.slurm.lab_files import NODES
from tests.slurm.machine import NAMESPACES, SEARCH_PATH, free_ports

INHERITED = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "MUNGE_")
# Process 1 of a node; $1 host name, $2 hosts file. It reaps orphans and forwards TERM; its end ends the node.
NODE_INIT = """hostname "$1" && mount --bind "$2" /etc/hosts || exit 1
slurmd -D -N "$1" & daemon=$!
trap 'kill -TERM $daemon' TERM
wait; wait"""
SOCKET_PATH_BYTES = 107
TERM_SECONDS = 15
BUSY = 10  # times as long as on a quiet machine, before something counts as hung
Answer = TypeVar("Answer")


class LabError(Exception):
    """The cluster did not behave as expected; the message has the last lines of its logs."""


def private(path: Path, content: bytes | str) -> None:
    """Write a file that only its owner can read, from its creation on."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # noqa: PTH123 - mode at birth
        file.write(content.encode() if isinstance(content, str) else content)


class SlurmLab:
    """One cluster: start(), use it, stop(). stop() may be called at any time, also after a failed start."""

    def __init__(self, folder: Path, accounting: bool = True) -> None:
        self.folder = folder
        self.accounting = accounting
        self.ports: list[int] = []  # slurmctld, slurmdbd, mariadbd, then one slurmd per node
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._password = secrets.token_hex(16)

    # --- for tests --------------------------------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        """What a client of this cluster needs on top of its own environment."""
        return {"SLURM_CONF": str(self.folder / "etc/slurm.conf")}

    def run(self, *argv: str, seconds: float = 30) -> subprocess.CompletedProcess[str]:
        """A client command, in the folder `jobs`. subprocess.TimeoutExpired when it takes longer."""
        return subprocess.run(
            argv, env=self._clean_environment(), cwd=self.folder / "jobs", stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=seconds * BUSY,
        )  # fmt: skip

    def output(self, *argv: str, seconds: float = 30) -> str:
        """What a client command printed, stripped. LabError when it fails."""
        ended = self.run(*argv, seconds=seconds)
        if ended.returncode != 0:
            raise LabError(f"exit code {ended.returncode} from {' '.join(argv)}: {ended.stderr.strip()}\n{self.logs()}")
        return ended.stdout.strip()

    def node_states(self) -> dict[str, str]:
        """Node -> state by sinfo: idle, mixed, allocated, down*, ...; empty while the controller is down."""
        lines = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T", seconds=5).stdout.splitlines()
        return {line.split()[0]: line.split()[1] for line in lines}

    def wait_for(self, predicate: Callable[[], Answer], seconds: float, what: str) -> Answer:
        """Poll until the predicate is true; returns its value. LabError in vain, or if a daemon died.

        `seconds`: enough on a quiet machine.
        """
        end = time.monotonic() + seconds * BUSY
        answer: object = None
        while time.monotonic() < end:
            self._check_daemons(what)
            try:
                answer = value = predicate()
            except subprocess.TimeoutExpired as error:
                answer = str(error)
                continue
            if value:
                return value
            time.sleep(0.05)
        raise LabError(f"not within {seconds * BUSY:g} s: {what}; last answer: {answer!r}\n{self.logs()}")

    def logs(self, lines: int = 4) -> str:
        """The last lines of every log."""
        files = sorted(path for path in (self.folder / "log").glob("*") if path.stat().st_size)
        tails = {path.name: path.read_text(errors="replace").splitlines()[-lines:] for path in files}
        return "\n".join(f"--- {name}\n" + "\n".join(tail) for name, tail in tails.items())

    # --- the cluster ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the cluster and wait until all nodes are idle. After a failure nothing is left running."""
        if self._running:
            raise LabError(f"the lab in {self.folder} is running already")
        try:
            self._write_files()
            self._start_munge()
            if self.accounting:
                self._start_database()
                self.start_accounting()
            self._start_controller()
            for name in NODES:
                self.start_node(name)
            idle = dict.fromkeys(NODES, "idle")
            self.wait_for(lambda: self.node_states() == idle, 60, "all nodes idle")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of the lab and wait until all are gone."""
        for group in (NODES, ("slurmctld",), ("slurmdbd",), ("mariadbd",), ("munged",)):
            self._end(group)

    def kill_node(self, name: str) -> None:
        """Power a node off: all its processes are gone when this returns."""
        node = self._running.pop(name)
        _signal(node, signal.SIGKILL)  # the kernel ends the namespace with its process 1
        node.wait()

    def freeze_daemon(self, name: str) -> None:
        """Stop a node's slurmd from answering; processes that it started keep running."""
        os.kill(self._daemon(name), signal.SIGSTOP)

    def thaw_daemon(self, name: str) -> None:
        os.kill(self._daemon(name), signal.SIGCONT)

    def _daemon(self, name: str) -> int:
        """Pid of a node's slurmd: the child of process 1 of the node that has its name among its arguments."""
        (init,) = _children(self._running[name].pid)
        wanted = ["slurmd", "-D", "-N", name]
        (daemon,) = (
            pid for pid in _children(init) if Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:4] == wanted
        )
        return daemon

    def start_node(self, name: str) -> None:
        """Power a node on. The controller accepts it again a moment later."""
        hosts = str(self.folder / "etc/hosts")
        self._spawn(name, "unshare", *NAMESPACES, "sh", "-c", NODE_INIT, "node-init", name, hosts)

    def restart_controller(self) -> None:
        self._end(("slurmctld",))
        self._start_controller()

    def stop_accounting(self) -> None:
        """End slurmdbd, so that clients and the controller have no accounting; the database stays up."""
        self._end(("slurmdbd",))

    def start_accounting(self) -> None:
        self._spawn("slurmdbd", "slurmdbd", "-D")
        self.wait_for(lambda: self.run("sacctmgr", "-n", "list", "cluster").returncode == 0, 30, "slurmdbd answers")

    # --- processes --------------------------------------------------------------------------------------------------

    def _clean_environment(self) -> dict[str, str]:
        """This process's environment, without settings of another cluster or of a job in which the tests run."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(INHERITED)}
        return {**kept, **self.environment, "PATH": SEARCH_PATH}

    def _spawn(self, name: str, *argv: str) -> None:
        """Start a daemon in a new session. The kernel kills it if the tests' process dies.

        The parent-death signal depends on the thread that starts the daemon, so call this from the main thread.
        """
        if name in self._running:
            raise LabError(f"{name} is running already")
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self._running[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv], env=self._clean_environment(), cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _check_daemons(self, what: str) -> None:
        ended = {name: daemon.returncode for name, daemon in self._running.items() if daemon.poll() is not None}
        if ended:
            raise LabError(f"ended by themselves (name: exit code) {ended}, while waiting for: {what}\n{self.logs()}")

    def _end(self, names: Iterable[str]) -> None:
        """Send TERM, then KILL to daemons that do not end; only to processes that this lab started."""
        ending = [self._running.pop(name) for name in names if name in self._running]
        for daemon in ending:
            _signal(daemon, signal.SIGTERM)
        end = time.monotonic() + TERM_SECONDS
        for daemon in ending:
            try:
                daemon.wait(timeout=max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(daemon, signal.SIGKILL)
                daemon.wait()

    # --- parts of start ---------------------------------------------------------------------------------------------

    def _write_files(self) -> None:
        for name in ("etc", "run", "log", "state", "gpu", "jobs", "tmp", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.ports = free_ports(3 + len(NODES))
        etc = self.folder / "etc"
        private(etc / "munge.key", secrets.token_bytes(128))
        private(etc / "slurmdbd.conf", self._text(lab_files.SLURMDBD_CONF))
        private(etc / "database.sql", self._text(lab_files.DATABASE_SQL))
        accounting = lab_files.SLURM_CONF_ACCOUNTING if self.accounting else lab_files.SLURM_CONF_PLAIN
        (etc / "slurm.conf").write_text(self._text(lab_files.SLURM_CONF + accounting))
        (etc / "plugstack.conf").write_text("")
        (etc / "gres.conf").write_text(f"NodeName=n[1-4] Name=gpu File={self.folder}/gpu/nvidia[0-3]\n")
        # One address per node: torch elastic treats nodes with the same address as one.
        hosts = [f"127.0.1.{number} {node}" for number, node in enumerate(NODES, start=1)]
        (etc / "hosts").write_text("\n".join([f"127.0.0.1 localhost {socket.gethostname()}", *hosts, ""]))
        for number in range(4):  # only a character device counts as a GPU; these are /dev/null
            path = self.folder / "gpu" / f"nvidia{number}"
            path.unlink(missing_ok=True)
            os.mknod(path, 0o20666, os.makedev(1, 3))

    def _text(self, template: str) -> str:
        controller, database, mariadb, *nodes = self.ports
        return template.format(
            dir=self.folder, host=socket.gethostname(), password=self._password, controller_port=controller,
            dbd_port=database, mariadb_port=mariadb, node_ports=f"{nodes[0]}-{nodes[-1]}",
        )  # fmt: skip

    def _start_munge(self) -> None:
        run = self.folder / "run"
        if len(os.fsencode(run / "munge.socket")) > SOCKET_PATH_BYTES:
            raise LabError(
                f"{run} is too long for a socket's path ({SOCKET_PATH_BYTES} bytes); use a shorter --basetemp"
            )
        # --force: munged requires folders that other users can enter, which the tests' temporary folder is not.
        self._spawn(
            "munged", "munged", "--foreground", "--force", f"--key-file={self.folder}/etc/munge.key",
            f"--socket={run}/munge.socket", f"--pid-file={run}/munged.pid", f"--seed-file={run}/munged.seed",
            f"--log-file={self.folder}/log/munged.log",
        )  # fmt: skip
        encode = ("munge", "-n", "-S", f"{run}/munge.socket")
        self.wait_for(lambda: self.run(*encode, seconds=5).returncode == 0, 15, "munged answers")

    def _start_database(self) -> None:
        # A separate temporary folder: a server that starts deletes the files of other servers in a shared one.
        data = (f"--datadir={self.folder}/mysql", f"--tmpdir={self.folder}/tmp", "--innodb-log-file-size=8M")
        if not (self.folder / "mysql").exists():
            made = self.run("mariadb-install-db", "--no-defaults", "--user=root", *data, "--skip-test-db", seconds=120)
            if made.returncode != 0:
                raise LabError(f"mariadb-install-db: exit code {made.returncode}\n{made.stdout}{made.stderr}")
        run = self.folder / "run"
        self._spawn(
            "mariadbd", "mariadbd", "--no-defaults", "--user=root", *data, f"--socket={run}/mysql.sock",
            f"--pid-file={run}/mysql.pid", "--bind-address=127.0.0.1", f"--port={self.ports[2]}", "--skip-name-resolve",
            f"--init-file={self.folder}/etc/database.sql", f"--log-error={self.folder}/log/mariadbd.log",
            "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=0",
        )  # fmt: skip
        ping = ("mariadb-admin", "--no-defaults", "--user=root", f"--socket={run}/mysql.sock", "ping")
        self.wait_for(lambda: self.run(*ping, seconds=5).returncode == 0, 60, "mariadbd answers")

    def _start_controller(self) -> None:
        self._spawn("slurmctld", "slurmctld", "-D")
        self.wait_for(lambda: self.run("scontrol", "ping", seconds=5).returncode == 0, 30, "slurmctld answers")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _signal(daemon: subprocess.Popen[bytes], number: int) -> None:
    """Signal the daemon or, for a node, its process 1: `unshare` waits for that process and ignores TERM."""
    if daemon.poll() is not None:
        return
    proc = Path(f"/proc/{daemon.pid}")  # not reaped yet, so the pid cannot have been reused
    children = _children(daemon.pid)
    is_node = (proc / "comm").read_text().strip() == "unshare"
    with contextlib.suppress(ProcessLookupError):  # it ended just now
        os.kill(children[0] if is_node and children else daemon.pid, number)
