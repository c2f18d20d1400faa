from __future__ import annotations

import pytest

from harness.core.hardware.interfaces import candidates, interface_of, matches

NODE = {
    "lo": ["127.0.0.1", "::1"],
    "docker0": ["172.17.0.1"],
    "eth0": ["10.1.0.7", "2001:db8::7"],
    "ib0": ["192.168.5.7"],
}
DEBIAN = ["127.0.1.1"]  # what the host's own name resolves to with a Debian-style hosts file


@pytest.mark.parametrize(
    ("named", "wanted", "expected"),
    [
        (DEBIAN, "", ["10.1.0.7", "192.168.5.7", "2001:db8::7"]),
        (["192.168.5.7"], "", ["192.168.5.7", "10.1.0.7", "2001:db8::7"]),
        (DEBIAN, "ib", ["192.168.5.7"]),
        (DEBIAN, "=ib", ["10.1.0.7", "192.168.5.7", "2001:db8::7"]),
        (["10.1.0.7"], "=ib0,ib1", ["192.168.5.7"]),
        (["10.1.0.7"], "^eth,docker", ["192.168.5.7"]),
        (["203.0.113.9"], "", ["10.1.0.7", "192.168.5.7", "203.0.113.9", "2001:db8::7"]),
        ([], "", ["10.1.0.7", "192.168.5.7", "2001:db8::7"]),
        (DEBIAN, "docker", ["172.17.0.1"]),
    ],
)
def test_other_nodes_get_no_loopback_address(named: list[str], wanted: str, expected: list[str]) -> None:
    assert candidates(NODE, named, wanted) == expected


def test_a_machine_without_a_network_has_its_loopback() -> None:
    assert candidates({"lo": ["127.0.0.1"]}, DEBIAN) == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        ("eth", {"eth0", "eth1"}),
        ("eth0,ib", {"eth0", "ib0"}),
        ("=eth", set()),
        ("=eth1", {"eth1"}),
        ("^eth0", {"eth1", "ib0"}),
        ("^=eth", {"eth0", "eth1", "ib0"}),
    ],
)
def test_names_are_read_as_nccl_reads_them(wanted: str, taken: set[str]) -> None:
    assert {name for name in ("eth0", "eth1", "ib0") if matches(name, wanted)} == taken


def test_an_address_has_its_interface() -> None:
    assert (interface_of("192.168.5.7", NODE), interface_of("8.8.8.8", NODE)) == ("ib0", None)
