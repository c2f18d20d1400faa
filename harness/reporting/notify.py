"""Sends a verdict to a command, which reads JSON from stdin, or to a webhook.

Nothing here raises for what the receiver does: problems are returned as text.
"""

from __future__ import annotations

import http.client
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import IO
from urllib.parse import quote, unquote, urlsplit

from harness.core.secrets import HIDDEN, redacted

TIMEOUT_S = 10.0
_SHOWN = 500  # characters of a failing receiver's output
# By name, of plug-ins. Each is given what follows "NAME:" in the receiver, and the verdict as JSON; it may raise.
NOTIFIERS: dict[str, Callable[[str, str], None]] = {}
_MIN_SECRET = 6  # characters of a part of a receiver that may be a secret


def is_url(receiver: str) -> bool:
    """Return whether a receiver is a URL, not a command."""
    return "://" in receiver.split(" ", 1)[0]


def _without_secrets(receiver: str, text: str) -> str:
    """Remove the receiver's secrets from its output or the system's: servers echo the path of the request."""
    words = [receiver, *receiver.split()]
    if is_url(receiver):
        parts = urlsplit(receiver)
        words += [parts.path, *parts.path.split("/"), parts.query, parts.username or "", parts.password or ""]
    forms = {form for word in words for form in (word, unquote(word), quote(word)) if len(form) >= _MIN_SECRET}
    return redacted(text, sorted(forms, key=len, reverse=True))


def shown(receiver: str) -> str:
    """Return the receiver without possible secrets: a webhook's path and query, a command's arguments.

    An invalid receiver (`problem_of`) is hidden entirely.
    """
    if name := _notifier(receiver):
        return f"{name}:..."
    if problem_of(receiver):
        return HIDDEN
    if is_url(receiver):
        parts = urlsplit(receiver)
        return f"{parts.scheme}://{parts.hostname}/..."
    return shlex.split(receiver)[0]


def problem_of(receiver: str) -> str:
    """Return why this cannot be a receiver, or ''."""
    if _notifier(receiver):
        return ""
    if is_url(receiver):
        if not receiver.isprintable() or " " in receiver:
            return "a URL has neither spaces nor control characters; write a space as %20"
        parts = urlsplit(receiver)
        return "" if parts.scheme in ("http", "https") and parts.hostname else "only http and https URLs are allowed"
    try:
        return "" if shlex.split(receiver) else "names neither a command nor a URL"
    except ValueError as error:
        return f"is not a command: {error}"


def notify(receiver: str, text: str, variables: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> str:
    """Deliver the JSON text; returns the problem, or an empty string.

    A notifier of a plug-in is called. A command runs without a shell, with the text on its standard input and the
    variables in its environment. A URL gets a POST; redirects are not followed.
    """
    if name := _notifier(receiver):
        target = receiver.removeprefix(f"{name}:")
        return _without_secrets(target, _within(timeout_s, _call, NOTIFIERS[name], target, text))
    if is_url(receiver):
        return _without_secrets(receiver, _post(receiver, text.encode(), timeout_s))
    program, *arguments = shlex.split(receiver)
    return _without_secrets(" ".join(arguments), _run([program, *arguments], text, variables, timeout_s))


def _run(argv: list[str], text: str, variables: Mapping[str, str], timeout_s: float) -> str:
    """Run the command with files, not pipes: neither a command that reads nothing nor a child it leaves can block."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as output:
        stdin.write(text.encode())
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return f"cannot be started: {error}"
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return f"did not end within {timeout_s:g} s{_tail(output)}"
        finally:
            if process.returncode is None:  # otherwise its children keep running: mail programs send in the background
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return f"ended with exit code {code}{_tail(output)}" if code else ""


def _tail(output: IO[bytes]) -> str:
    output.seek(0)
    words = " ".join(output.read().decode("utf-8", errors="replace").split())
    return f": {words[-_SHOWN:]}" if words else ""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a redirected POST would become a GET without the verdict."""

    def redirect_request(self, *_: object) -> None:
        return None


def _notifier(receiver: str) -> str:
    """Return the notifier that a receiver like "name:target" names, or ''."""
    name, sign, _ = receiver.partition(":")
    return name if sign and name in NOTIFIERS else ""


def _call(notifier: Callable[[str, str], None], target: str, text: str, answer: list[str]) -> None:
    try:
        notifier(target, text)
        answer[0] = ""
    except Exception as error:
        answer[0] = f"{type(error).__name__}: {error}"[:_SHOWN]


def _within(timeout_s: float, work: Callable[..., None], *arguments: object) -> str:
    """Run `work` in a daemon thread with a time limit; return what it put into the list that it gets last."""
    answer = [f"no answer within {timeout_s:g} s"]
    thread = threading.Thread(target=work, args=(*arguments, answer), daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answer[0]


def _post(url: str, body: bytes, timeout_s: float) -> str:
    """Post in a thread, as socket timeouts are per read: a server that sends byte by byte would block the harness."""
    return _within(timeout_s, _ask, url, body, timeout_s)


def _ask(url: str, body: bytes, timeout_s: float, answer: list[str]) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "packing-harness"}
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout_s):
            answer[0] = ""
    except urllib.error.HTTPError as error:
        with error:
            words = " ".join(error.read(_SHOWN).decode("utf-8", errors="replace").split())
            answer[0] = f"answered {error.code} {error.reason}{f': {words}' if words else ''}"
    except TimeoutError:
        pass
    except (OSError, http.client.HTTPException, ValueError) as error:
        timed_out = isinstance(getattr(error, "reason", None), TimeoutError)
        answer[0] = answer[0] if timed_out else f"cannot be reached: {error}"
