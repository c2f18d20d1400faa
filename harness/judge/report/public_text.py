"""Texts for publication: without secrets, paths, hosts and accounts of the machine they come from. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from harness.core.text.secrets import redacted

_PUBLIC = ("github.com", "gitlab.com", "huggingface.co", "pytorch.org", "nvidia.com", "python.org", "arxiv.org")
_INTERNAL = r"(?:local|localdomain|internal|intern|intra|lan|corp|home|cluster|private)"
_PART = r"[\w.+@~=,%-]+"
# Paths of a machine: file:///data/me/x, -I/data/me/x, ~/x, ~me/x, /data/me/x, //nfs/me/x. A slash after a letter is
# part of a relative path, which is kept.
_PATH = re.compile(
    r"(?P<url>\b[A-Za-z][\w+.-]{0,20}://[^\s\"'`<>]*)"
    rf"|(?<![\w/])(?P<flag>-{{1,2}}[A-Za-z][\w-]{{0,30}}?=?)(?<!PATH)(?P<flagged>/(?:{_PART}/)+(?:{_PART})?)"
    rf"|(?<![\w./~-])~[\w.-]*/(?P<home>(?:{_PART}/)*{_PART})"
    rf"|(?<![\w.~/-])(?P<path>/{{1,2}}(?:{_PART}/+)+(?:{_PART})?)"
)
_ADDRESS = re.compile(r"(?<![\w.])(?:10|127|172|192)(?:\.\d{1,3}){3}(?::\d{1,5})?(?![\w.])")
_HOST = re.compile(rf"(?<![\w.-])(?:[A-Za-z][\w-]{{0,62}}\.){{1,8}}{_INTERNAL}(?![\w.-])")
_ACCOUNT = re.compile(
    rf"(?<![\w.+-])[\w+-][\w.+-]{{0,63}}@((?:[A-Za-z][\w-]{{0,62}}\.){{1,8}}(?:com|org|net|edu|gov|io|ai|{_INTERNAL}))(?![\w-])"
)
_KEPT = ("site-packages/", "dist-packages/")  # the rest of the path names a file of a package


def public(text: str, hosts: Iterable[str] = ()) -> str:
    """The text with secrets replaced, absolute paths cut to the file of a package or to PATH/TO/NAME, and hosts,
    addresses and accounts replaced by HOST and USER@HOST. `hosts`: further names to replace."""
    text = _PATH.sub(_public_match, redacted(text))
    text = _ACCOUNT.sub(lambda found: found[0] if _is_public(found[1]) else "USER@HOST", text)
    text = _HOST.sub("HOST", _ADDRESS.sub("HOST", text))
    for host in hosts:
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "HOST", text)
    return text


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
    return path[inside + 1 :] if inside >= 0 else f"PATH/TO/{path.rstrip('/').rpartition('/')[2]}"
