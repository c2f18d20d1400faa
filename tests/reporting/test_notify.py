"""Receivers that work, fail, hang or misbehave: real commands, and a real HTTP server on this machine."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.reporting.notify import notify, problem_of, shown
from tests.processes import await_end

TEXT = json.dumps({"text": "verdict é", "verdict": "fail"})
SHORT_S = 0.3


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def python(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


def test_a_command_gets_the_json_and_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os,sys; open('got','w').write(os.environ['HARNESS_VERDICT'] + sys.stdin.read())"
    monkeypatch.chdir(tmp_path)
    assert notify(python(code), TEXT, {"HARNESS_VERDICT": "fail"}) == ""
    assert (tmp_path / "got").read_text() == "fail" + TEXT


def test_a_command_that_reads_nothing_succeeds(tmp_path: Path) -> None:
    assert notify("true", "x" * 1_000_000, {}) == ""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (python("print('no such channel'); raise SystemExit(3)"), "ended with exit code 3: no such channel"),
        ("/no/such/command --now", "cannot be started: "),
        (python("import time; time.sleep(600)"), "did not end within 0.3 s"),
    ],
)
def test_a_command_that_fails_or_hangs_is_reported(command: str, said: str) -> None:
    assert said in notify(command, TEXT, {}, timeout_s=SHORT_S if "sleep" in command else 60)


def test_a_command_that_hangs_ends_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    assert "did not end" in notify(f"sh -c 'sleep 600 & echo $! > {pid}; wait'", TEXT, {}, timeout_s=3)
    await_end(int(pid.read_text()))


def test_children_that_a_command_leaves_keep_running(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    assert notify(f"sh -c 'sleep 600 & echo $! > {pid}'", TEXT, {}) == ""
    os.kill(int(pid.read_text()), signal.SIGKILL)  # still running


@contextmanager
def server(handler: type[socketserver.BaseRequestHandler]) -> Iterator[str]:
    """Serves until the block ends; yields the URL."""
    running = ThreadingHTTPServer(("127.0.0.1", 0), handler)  # type: ignore[arg-type]
    running.daemon_threads = True
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}/hook/secret"
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def answering(code: int, body: bytes = b"", **headers: str) -> tuple[type[BaseHTTPRequestHandler], list[Any]]:
    """A handler with a fixed answer, and the list of requests that it got."""
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            got.append((self.path, self.headers["Content-Type"], text))
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler, got


def test_a_webhook_gets_the_json() -> None:
    handler, got = answering(200, b"ok")
    with server(handler) as url:
        assert notify(url, TEXT, {}) == ""
    assert got == [("/hook/secret", "application/json", TEXT)]


def test_an_error_of_a_webhook_is_reported_with_its_message() -> None:
    handler, _ = answering(500, b"no such\nchannel")
    with server(handler) as url:
        assert notify(url, TEXT, {}) == "answered 500 Internal Server Error: no such channel"


def test_a_redirect_is_not_followed() -> None:
    target, got = answering(200)
    with server(target) as there:
        handler, _ = answering(302, Location=there)
        with server(handler) as url:
            assert notify(url, TEXT, {}).startswith("answered 302 ")
    assert got == []


def test_a_webhook_that_closes_at_once_is_reported() -> None:
    class Closes(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.close()

    with server(Closes) as url:
        assert notify(url, TEXT, {}).startswith("cannot be reached: ")


def test_an_unreachable_webhook_is_reported() -> None:
    handler, _ = answering(200)
    with server(handler) as url:
        pass
    assert notify(url, TEXT, {}).startswith("cannot be reached: ")


@pytest.mark.parametrize("dripping", [False, True])
def test_a_webhook_that_hangs_or_drips_times_out(dripping: bool) -> None:
    ended = threading.Event()

    class Hangs(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            if dripping:
                self.request.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            try:
                while not ended.wait(0.05):
                    if dripping:
                        self.request.sendall(b"x")
            except OSError:
                pass

    with server(Hangs) as url:
        try:
            assert notify(url, TEXT, {}, timeout_s=SHORT_S) == "no answer within 0.3 s"
        finally:
            ended.set()


@pytest.mark.parametrize(
    ("receiver", "problem"),
    [
        ("https://example.org/hook", ""),
        ("mail -s 'packing nightly' me", ""),
        ("ftp://example.org/x", "only http and https URLs are allowed"),
        ("https:///x", "only http and https URLs are allowed"),
        ("mail -s 'open", "is not a command: No closing quotation"),
        ("https://example.org/T0 x", "a URL has neither spaces nor control characters; write a space as %20"),
        ("  ", "names neither a command nor a URL"),
    ],
)
def test_an_invalid_receiver_is_rejected_before_it_is_used(receiver: str, problem: str) -> None:
    assert problem_of(receiver) == problem


def test_secrets_are_not_shown() -> None:
    assert shown("https://user:word@hooks.example.org/T0/secret?x=1") == "https://hooks.example.org/..."
    assert shown("curl -H 'Token: secret' x") == "curl"
    assert shown("https://hooks.example.org/T0 /secret") == "***"


def test_a_server_that_echoes_the_request_reveals_no_secret() -> None:
    handler, _ = answering(404, b"POST /hook/secret: no handler for secret (%2Fhook%2Fsecret)")
    with server(handler) as url:
        said = notify(url, TEXT, {})
    assert said.startswith("answered 404 Not Found: POST ***: no handler for ***")
    assert "secret" not in said


def test_a_command_that_repeats_its_arguments_reveals_no_secret() -> None:
    said = notify("sh -c 'echo cannot send with hunter2-hunter2; exit 4' x hunter2-hunter2", TEXT, {})
    assert said.startswith("ended with exit code 4: ") and "hunter2" not in said
