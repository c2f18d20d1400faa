"""Texts for publication: without secrets, paths, hosts and accounts of the machine they come from. Pure."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from harness.core.secrets import redacted

_PUBLIC = ("github.com", "gitlab.com", "huggingface.co", "pytorch.org", "nvidia.com", "python.org", "arxiv.org")
_INTERNAL = r"(?:local|localdomain|internal|intern|intra|lan|corp|home|cluster|private)"
_PART = r"[\w.+@~=,%-]+"
_FOLDER = r"[\w.+@~=,%()\[\]{}#!&^-]+"
# Paths of a machine: "/data/me/my project/x", file:///data/me/x, -I/data/me/x, ~/x, ~me/x, /data/me(a)/x, //nfs/me/x.
# Only in quotes does a path have spaces. A slash after a letter is part of a relative path, which is kept.
_PATH = re.compile(
    r"(?P<quote>[\"'`])(?P<quoted>/(?:(?!(?P=quote))[^\n]){1,1000})(?=(?P=quote))"
    r"|(?P<url>\b[A-Za-z][\w+.-]{0,20}://[^\s\"'`<>]*)"
    rf"|(?<![\w/])(?P<flag>-{{1,2}}[A-Za-z][\w-]{{0,30}}?=?)(?<!PATH)(?P<flagged>/(?:{_FOLDER}/)+(?:{_PART})?)"
    rf"|(?<![\w./~-])~[\w.-]*/(?P<home>(?:{_FOLDER}/)*{_PART})"
    rf"|(?<![\w.~/-])(?P<path>/{{1,2}}(?:{_FOLDER}/+)+(?:{_PART})?)"
)
_IPV4 = re.compile(r"(?<![\w.])(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(:\d{1,5})?(?![\w.]*\w)")
_BEFORE_ADDRESS = re.compile(
    r"(?i)(?:\b(?:to|at|on|from|via|host|addr|address|ip|server|peer|node|client)\b\W{0,3}|[@/\[(])$"
)
_LEAST_OCTET = 30  # versions of four parts begin with a smaller number
_IPV6 = re.compile(
    r"(?<![\w:.])\[?(?P<six>[\da-fA-F]{0,4}(?::[\da-fA-F]{0,4}){2,7})(?P<zone>%\w+)?(?:\]:\d{1,5}|\])?(?![\w:])"
)
_HARDWARE = re.compile(r"(?<![\w:])[\da-fA-F]{2}(?::[\da-fA-F]{2}){5}(?![\w:])")
_HOST = re.compile(rf"(?<![\w.-])(?:(?:[A-Za-z][\w-]{{0,62}}\.){{1,8}}{_INTERNAL}|ip(?:-\d{{1,3}}){{4}})(?![\w.-])")
# A matrix product is written the same way, so a host is known by its domain, a digit, or what stands around it.
_ACCOUNT = re.compile(
    r"(?<![\w.+-])(?P<user>[\w+-][\w.+-]{0,63})@(?P<host>[A-Za-z][\w-]{0,62}(?:\.[A-Za-z\d][\w-]{0,62}){0,8})"
    r"(?:(?P<path>:(?=[/~]|PATH/TO/))|(?![\w(-]))"
)
_LOGIN = re.compile(r"\b(?:ssh|scp|sftp|rsync|mosh)\b[^\n@]{0,80}$")
_DOMAIN = re.compile(rf"(?:com|org|net|edu|gov|io|ai|{_INTERNAL}|(?<=\w\w\.)[a-z]{{2}})")
_HOMES = ("home", "homes", "user", "users", "Users")
_KEPT = ("site-packages/", "dist-packages/")  # the rest of the path names a file of a package


def public(text: str, hosts: Iterable[str] = ()) -> str:
    """The text with secrets replaced, absolute paths cut to the file of a package or to PATH/TO/NAME, and hosts,
    addresses and accounts replaced by HOST and USER@HOST. `hosts`: further names to replace."""
    text = _PATH.sub(_public_match, redacted(text))
    text = _ACCOUNT.sub(_public_account, text)
    text = _IPV6.sub(_public_ipv6, _IPV4.sub(_public_ipv4, _HARDWARE.sub("HOST", text)))
    text = _HOST.sub("HOST", text)
    for host in hosts:
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "HOST", text)
    return text


def _public_account(found: re.Match[str]) -> str:
    host = found["host"]
    if _is_public(host):
        return found[0]
    domain = host.rpartition(".")[2] if "." in host else ""
    known = _DOMAIN.fullmatch(host, len(host) - len(domain)) if domain else None
    numbered = len(host) > 3 and len(found["user"]) > 1 and any(char.isdigit() for char in host)
    before = found.string[max(found.start() - 90, 0) : found.start()]
    sure = known or numbered or found["path"] or _LOGIN.search(before)
    return f"USER@HOST{found['path'] or ''}" if sure else found[0]


def _public_ipv4(found: re.Match[str]) -> str:
    parts = [int(part) for part in found.groups()[:4]]
    if max(parts) > 255 or (not parts[0] and any(parts)):
        return found[0]
    sure = found[5] or parts[0] >= _LEAST_OCTET or parts[0] == 10
    return (
        "HOST" if sure or _BEFORE_ADDRESS.search(found.string[max(found.start() - 20, 0) : found.start()]) else found[0]
    )


def _public_ipv6(found: re.Match[str]) -> str:
    """An address, not a time of day or a slice such as [::2] or [a::b]."""
    try:
        ipaddress.IPv6Address(found["six"])
    except ValueError:
        return found[0]
    groups = [group for group in found["six"].split(":") if group]
    sure = found["zone"] or len(groups) > 3 or any(len(group) > 2 and not group.isdigit() for group in groups)
    return "HOST" if sure else found[0]


def publish(value: Any, hosts: Iterable[str] = ()) -> Any:
    """JSON values or a dataclass with every text made `public`; keys are kept."""
    known = tuple(name for host in hosts for name in dict.fromkeys((host, host.split(".")[0])) if _is_host(name))
    return _each_text(value, partial(public, hosts=known))


def _each_text(value: Any, change: Any) -> Any:
    if type(value) is str:
        return change(value)
    if isinstance(value, Mapping):
        return {key: _each_text(item, change) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_each_text(item, change) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in dataclasses.fields(value) if item.init]
        return dataclasses.replace(value, **{name: _each_text(getattr(value, name), change) for name in names})
    return value


def _is_host(name: str) -> bool:
    """Whether a name identifies a machine; very short names are too ambiguous to replace."""
    return len(name) > 2 and name not in ("localhost", "unknown", "none")


def _is_public(host: str) -> bool:
    return any(host.lower() == name or host.lower().endswith(f".{name}") for name in _PUBLIC)


def _public_match(found: re.Match[str]) -> str:
    if found["quoted"]:
        path: str = found["quoted"]
        return found["quote"] + (_public_path(path) if "/" in path.lstrip("/") else path)
    if found["url"]:
        scheme, _, rest = found["url"].partition("://")
        if scheme.lower() == "file":
            return _public_path(rest)
        host = re.split(r"[/:?#]", rest.rpartition("@")[2] if "@" in rest.split("/")[0] else rest)[0]
        end = found["url"][len(found["url"].rstrip(").,;:]")) :]
        return found["url"] if _is_public(host) or host == "HOST" else f"{scheme}://HOST/...{end}"
    return (found["flag"] or "") + _public_path(found["flagged"] or found["home"] or found["path"])


def _public_path(path: str) -> str:
    for part in _KEPT:
        if part in path:
            return path.rpartition(part)[2]
    inside = path.find("/megatron/")
    if inside >= 0:
        return path[inside + 1 :]
    folder, _, name = path.rstrip("/").rpartition("/")
    return f"PATH/TO/{'HOME' if folder.rpartition('/')[2] in _HOMES else name}"
