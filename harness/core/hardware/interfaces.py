"""The network interface and address under which other nodes reach this one. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence

# Bridges and tunnels of containers and virtual machines: the same addresses exist on every node.
_VIRTUAL = ("lo", "docker", "virbr", "veth", "br-", "cni", "cali", "flannel", "podman", "lxc", "kube", "tunl")


def matches(interface: str, wanted: str) -> bool:
    """Whether NCCL uses an interface if NCCL_SOCKET_IFNAME is `wanted`.

    Comma-separated prefixes; after `=`: whole names; after `^`: all interfaces but these; after `^=`: both.
    """
    unwanted, exact = wanted.startswith("^"), wanted.lstrip("^").startswith("=")
    names = [name for name in wanted.lstrip("^=").split(",") if name]
    found = interface in names if exact else interface.startswith(tuple(names))
    return found is not unwanted


def candidates(interfaces: Mapping[str, Sequence[str]], named: Iterable[str], wanted: str = "") -> list[str]:
    """Addresses under which other nodes may reach this one, the most likely first; loopback only if there is no other.

    `interfaces`: addresses by interface; `named`: what the host's name resolves to, often 127.0.1.1 on Debian;
    `wanted`: NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME; if interfaces match it, only their addresses are returned.
    """
    chosen = [name for name in interfaces if wanted and matches(name, wanted) and not name.startswith("lo")]
    chosen = chosen or [name for name in interfaces if not name.startswith(_VIRTUAL)]
    own = [address for name in chosen for address in interfaces[name] if not is_loopback(address)]
    resolved = [address for address in named if not is_loopback(address)]
    ordered = [*(one for one in own if one in resolved), *own, *([] if wanted and own else resolved)]
    by_version = sorted(dict.fromkeys(ordered), key=lambda one: ipaddress.ip_address(one).version)  # stable
    return by_version or ["127.0.0.1"]


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def interface_of(address: str, interfaces: Mapping[str, Sequence[str]]) -> str | None:
    """The interface that has an address; None if there is none."""
    return next((name for name, addresses in interfaces.items() if address in addresses), None)
