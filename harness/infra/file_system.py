"""The type of the file system that a path is on, from the kernel's table of mounts."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
# Types that several machines can share, as the kernel names them.
SHARED = frozenset(
    ("9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.juicefs", "fuse.sshfs", "glusterfs")
    + ("gpfs", "lustre", "mmfs", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "virtiofs")
    + ("wekafs",)
)


def is_network(path: Path) -> bool:
    """Return whether a path, which need not exist, is on a network file system; False where that is unknown."""
    try:
        table = MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    kind = kind_of(path.resolve(), table)
    return kind in SHARED or kind.split(".")[0] == "fuse"  # what is behind another FUSE mount is unknown


def kind_of(path: Path, table: str) -> str:
    """Return the type of the file system that an absolute path is on, from a table in the form of /proc/self/mountinfo.

    Fields: id, parent, device, root, mount point, options, optional fields, "-", type (proc(5)). Of two mounts on one
    point the later one hides the other.
    """
    best, kind = -1, ""
    for line in table.splitlines():
        mount, _, rest = line.partition(" - ")
        point = Path(_unescaped(mount.split(" ")[4]))
        if (path == point or point in path.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), rest.split(" ")[0]
    return kind


def _unescaped(text: str) -> str:
    """Return the table writes blanks and some other characters as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
