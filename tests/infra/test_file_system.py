from __future__ import annotations

from pathlib import Path

import pytest

from harness.infra import file_system
from harness.infra.file_system import is_network, kind_of

TABLE = """\
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:40 / /users rw,relatime shared:5 master:2 - nfs4 server:/users rw,vers=4.2
31 27 0:41 / /scratch rw - lustre 10.0.0.1@tcp:/scratch rw,flock
32 30 0:42 / /users/me/with\\040blank rw - fuse.sshfs me@far: rw
33 27 0:43 / /over rw - nfs a:/ rw
34 27 0:44 / /over rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/x", "ext4"),
        ("/users/me/reports/history.sqlite", "nfs4"),
        ("/usersland/x", "ext4"),
        ("/scratch", "lustre"),
        ("/users/me/with blank/x", "fuse.sshfs"),
        ("/over/x", "xfs"),
    ],
)
def test_the_deepest_and_latest_mount_decides(path: str, kind: str) -> None:
    assert kind_of(Path(path), TABLE) == kind


def test_network_file_systems_are_known_by_their_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(file_system, "MOUNTS", table)
    assert not is_network(Path("/users/x"))  # unknown without a table
    table.write_text(TABLE)
    assert [is_network(Path(path)) for path in ("/users/x", "/scratch/x", "/users/me/with blank/x", "/x")] == [
        True,
        True,
        True,
        False,
    ]
