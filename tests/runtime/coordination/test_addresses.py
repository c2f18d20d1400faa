from __future__ import annotations

import socket
from pathlib import Path

import pytest

from harness.core.errors import InfrastructureError
from harness.core.run.run_dir import AttemptDir
from harness.runtime.coordination import rendezvous
from harness.runtime.coordination.rendezvous import NodeShare

NODE = {"lo": ["127.0.0.1"], "eth0": ["10.1.0.7"], "ib0": ["192.168.5.7"]}


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose hosts file maps its own name to 127.0.1.1."""
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(rendezvous, "interfaces", lambda: NODE)
    monkeypatch.setattr(rendezvous, "resolved", lambda name: ["127.0.1.1"])


@pytest.mark.usefixtures("debian")
def test_a_host_whose_own_name_is_127_0_1_1_announces_addresses_that_others_can_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert rendezvous.own_addresses() == ["10.1.0.7", "192.168.5.7"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert rendezvous.own_addresses() == ["192.168.5.7"]
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=eth0")
    assert rendezvous.own_addresses() == ["10.1.0.7"]


@pytest.mark.usefixtures("debian")
def test_gloo_is_kept_off_the_loopback_address_of_the_hosts_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendezvous.gloo_interface("192.168.5.7") == {"GLOO_SOCKET_IFNAME": "ib0"}
    assert rendezvous.gloo_interface("127.0.0.1") == {}
    monkeypatch.setattr(rendezvous, "resolved", lambda name: ["10.1.0.7"])
    assert rendezvous.gloo_interface("192.168.5.7") == {}
    monkeypatch.setattr(rendezvous, "resolved", lambda name: [])
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert rendezvous.gloo_interface("192.168.5.7") == {}


def test_the_addresses_of_this_machine_are_found() -> None:
    assert "127.0.0.1" in rendezvous.interfaces()["lo"]
    assert "127.0.0.1" in rendezvous.resolved("localhost")
    assert rendezvous.resolved("no-such-host.invalid") == []


def test_a_store_for_other_nodes_is_reached_at_the_address_that_answers(tmp_path: Path) -> None:
    share = NodeShare(node=0, nodes=2, world_size=4)
    with rendezvous.listen(share, ["127.0.0.1"]) as listener:
        meeting = rendezvous.announce(AttemptDir(tmp_path), listener, ["127.0.0.2", "127.0.0.1"])
        assert listener.getsockname()[0] == "0.0.0.0"
        assert rendezvous.await_rendezvous(AttemptDir(tmp_path), float("inf")) == meeting
        assert rendezvous.reach(meeting.addresses, meeting.port)[0] == "127.0.0.2"
        closed = socket.create_server(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        closed.close()
        assert rendezvous.reach(["127.0.0.1"], meeting.port) == ("127.0.0.1", "127.0.0.1")
    with pytest.raises(
        InfrastructureError, match=rf"127\.0\.0\.1 port {port} \(Connection refused\)\. Set NCCL_SOCKET"
    ):
        rendezvous.reach(["127.0.0.1"], port, timeout_s=0.0)
