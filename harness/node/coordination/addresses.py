"""This host's network interfaces, the addresses it announces to other nodes, and connections to another node."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from harness.core.errors import InfrastructureError
from harness.core.hardware import interface_of, is_loopback, node_addresses

REACH_S = 30.0  # time for node 0 to accept a connection; a listening socket accepts at once
_ATTEMPT_S = 3.0  # time-out per address: packets to a wrong network are dropped, not refused
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_IF_INET6 = Path("/proc/net/if_inet6")
_LINK_LOCAL = "20"  # scope in /proc/net/if_inet6; such an address is valid only together with its interface
_IFNAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def interfaces() -> dict[str, list[str]]:
    """Interface name -> its IPv4 and IPv6 addresses (Linux)."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # no IPv4 address
                request = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.setdefault(name, []).append(socket.inet_ntoa(request[20:24]))
    with suppress(OSError):  # a kernel without IPv6
        for line in _IF_INET6.read_text(encoding="ascii").splitlines():
            address, _, _, scope, _, name = line.split()
            if scope != _LINK_LOCAL:
                found.setdefault(name, []).append(str(ipaddress.IPv6Address(bytes.fromhex(address))))
    return found


def resolved(name: str) -> list[str]:
    """Addresses that a host name resolves to; empty when it does not resolve."""
    try:
        return [str(item[4][0]) for item in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def own_addresses() -> list[str]:
    """Addresses at which other nodes may reach this one, the most likely first."""
    wanted = next((os.environ[name] for name in _IFNAMES if os.environ.get(name)), "")
    return node_addresses(interfaces(), resolved(socket.gethostname()), wanted)


def reach(addresses: Sequence[str], port: int, timeout_s: float = REACH_S) -> tuple[str, str]:
    """The first address that accepts a connection, and this host's own address on that connection.

    InfrastructureError naming every address tried and why it failed.
    """
    until = time.monotonic() + timeout_s
    while True:
        failures = {}
        for address in addresses:
            try:
                with socket.create_connection((address, port), timeout=_ATTEMPT_S) as connection:
                    return address, str(connection.getsockname()[0])
            except OSError as error:
                failures[address] = error.strerror or str(error)
        if time.monotonic() > until:
            break
        time.sleep(0.1)
    tried = ", ".join(f"{address} port {port} ({why})" for address, why in failures.items())
    raise InfrastructureError(
        f"node 0 could not be reached from {socket.gethostname()} within {timeout_s:g} s: {tried}. Set "
        "NCCL_SOCKET_IFNAME in the cluster profile's env to the network interface that connects the nodes"
    )


def gloo_interface(own: str) -> dict[str, str]:
    """GLOO_SOCKET_IFNAME for a host whose name resolves to a loopback address, which gloo would bind to.

    Empty when it is already set or not needed. `own`: the address of this host that other nodes use.
    """
    named = resolved(socket.gethostname())
    if os.environ.get("GLOO_SOCKET_IFNAME") or is_loopback(own) or any(not is_loopback(one) for one in named):
        return {}
    name = interface_of(own, interfaces())
    return {"GLOO_SOCKET_IFNAME": name} if name else {}
