"""Secrets in texts: detection and redaction. Pure.

A secret is known by its name (a variable DB_PASSWORD, a header Authorization, a query parameter signature), by its
shape (a GitHub token, a JSON web token, a private key), by its place (user and password of a URL, the path of a chat
webhook), or by its value, when the caller knows it from the environment. No matched value spans a quote, a backslash or
a space, so redacted JSON, YAML, HTML or XML stays well-formed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any, TypeVar

T = TypeVar("T")
HIDDEN = "***"
NAMES = "PASSWORD, SECRET, TOKEN, KEY, CREDENTIAL, AUTH, COOKIE and the like"  # for messages
# What follows an option in messages about it, where a command line has its value.
_SENTENCE = frozenset(("and", "cannot", "has", "in", "is", "may", "must", "needs", "not", "or", "was", "would"))
_LEAST_VALUE = 8  # characters of an environment variable's value; shorter ones occur by chance

# Names are judged by their whole parts: DB_PASSWD has two, apiKey too. Only what ends no other word may have more
# letters before it (PGPASSWD, MYCREDENTIAL); "tiktoken" and "wckey" hold no secret.
_ENDINGS = (
    *("PASSWD", "PASSWORD", "PASSPHRASE", "SECRET", "SECRETS", "CREDENTIAL", "CREDENTIALS", "CREDS", "APIKEY"),
    *("ACCESSKEY", "SECRETKEY", "PRIVATEKEY", "ACCESSTOKEN", "APITOKEN", "AUTHTOKEN", "REFRESHTOKEN"),
)
_ANYWHERE = frozenset(("AUTHORIZATION", "COOKIE", "COOKIES", "WEBHOOK"))
# These words are secret as the last part, the noun that the other parts are about: HF_TOKEN, but token-dispatcher-type.
_NOUNS = frozenset(("PASS", "PWD", "TOKEN", "KEY", "AUTH", "SIGNATURE"))
# Beside a noun these make it secret at any place: AWS_ACCESS_KEY_ID, GITHUB_TOKEN_CI, TOKEN_GITHUB.
_OF_ACCESS = frozenset(
    (
        *("ACCESS", "API", "AUTH", "BEARER", "BOT", "DEPLOY", "ENCRYPTION", "OAUTH", "PRIVATE", "REFRESH", "SECRET"),
        *("SESSION", "SIGNING", "SSH", "ANTHROPIC", "AWS", "AZURE", "DB", "GH", "GITHUB", "GITLAB", "GOOGLE", "HF"),
        *("HUB", "HUGGINGFACE", "NGC", "NPM", "OPENAI", "PYPI", "SLACK", "WANDB"),
    )
)
# Before a noun these make it a token of a vocabulary, a pass over data, or the key of a mapping or an attention head.
_OF_DATA = frozenset(
    (
        *(
            "BACKWARD",
            "BOS",
            "BREAK",
            "CACHE",
            "CLASS",
            "CLS",
            "CONFIG",
            "END",
            "EOD",
            "EOS",
            "FIRST",
            "FORWARD",
            "GHOST",
        ),
        *("HEAD", "IMAGE", "LABEL", "LAST", "LENGTH", "MASK", "MIDDLE", "NEXT", "PAD", "PADDING", "PARENT", "PER"),
        *("PREFIX", "PROMPT", "QUERY", "REVERSE", "SEP", "SORT", "SPECIAL", "START", "STOP", "SUFFIX", "UNK", "VALID"),
        "VIDEO",
    )
)
_UNAMBIGUOUS = re.compile(
    r"(?i:passw|passphrase|secret|credential|cookie|^(?:token|auth|authorization|apikey)$)|[_.-]|[a-z][A-Z]"
)
_PARAMETERS = frozenset(("SIG", "CODE", "JWT"))  # secret in URL queries, in addition to the names above

_BREAK = r"\s\"'<>\\"  # characters that end a value in any of the formats
_USERINFO = re.compile(rf"://(?P<user>[^{_BREAK}/]*)@|://(?P<odd>[^{_BREAK}/:@]*:(?!\d+/)[^{_BREAK}]{{1,200}})@")
_WEBHOOK = re.compile(
    r"((?:hooks\.slack\.com|discord(?:app)?\.com/api/webhooks|\.webhook\.office\.com|/hooks)/)"
    rf"([^{_BREAK}?#]{{8,}})"
)
_PARAMETER = re.compile(rf"([?&;])([A-Za-z][\w.-]{{0,63}})=([^{_BREAK}&#;]+)")
_ASSIGNED = re.compile(
    r"(?<![\w.-])(-{0,2})([A-Za-z_][\w.-]{0,63})=(?!=|\*\*\*|VALUE\b)(\"[^\"\\\n]*\"|'[^'\\\n]*'|(?![\"'$`])[^\s\"'<>\\&;,]+)"
)
_OPTION = re.compile(rf"(?<![\w-])(--[a-z][a-z-]{{0,63}}|-u)( +)(?![-$`])([^{_BREAK}]+)")
_QUOTED = re.compile(r"([\"'])([A-Za-z][\w.-]{0,63})\1(\s?:\s?)([\"'])((?!\*\*\*)[^\"'\\\n]+)\4")
_HEADER = re.compile(
    r"(?i)(?<![\w-])((?:proxy-)?authorization|(?:set-)?cookie|\w[\w-]{0,39}-(?:key|token|secret|auth|password))"
    r"( ?: ?)(?!\*\*\*)((?:(?:bearer|basic|token|negotiate|digest) +)?[^\s\"'<>\\]+)"
)
_BEARER = re.compile(r"(?i)\b(bearer +)[A-Za-z0-9._~+/=-]{8,}")
_KEY_BEGINS, _KEY_ENDS = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"), "PRIVATE KEY-----"
_PRIVATE_KEY = re.compile(r"-----BEGIN ([A-Z ]{0,30}PRIVATE KEY)-----[^\"'<>]*?(?:-----END \1-----|(?=[\"'<>])|\Z)")
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct)-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Z0-9])"
    r"|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}|hf_[A-Za-z0-9]{16,}|sk-[\w-]{20,}|pypi-[\w-]{32,}|npm_[A-Za-z0-9]{30,}"
    r"|AIza[\w-]{30,}|nvapi-[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
    r")"
)
_SHAPE_SIGNS = (
    "gh",
    "github_pat_",
    "gl",
    "AKIA",
    "ASIA",
    "xox",
    "xapp-",
    "hf_",
    "sk-",
    "pypi-",
    "npm_",
    "AIza",
    "nvapi-",
    "eyJ",
)


@cache
def is_secret_name(name: str) -> bool:
    """Whether a variable, option or key of this name holds a secret: DB_PASSWD, HF_TOKEN, apiKey, X-Auth."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    parts = [part.rstrip("0123456789") for part in re.split(r"[^A-Z0-9]+", spaced.upper())]
    parts = [part for part in parts if part]
    if not parts or parts in (["PWD"], ["OLD", "PWD"]):
        return False
    if any(part.endswith(_ENDINGS) or part in _ANYWHERE for part in parts):
        return True
    for before, part, after in zip(["", *parts], parts, [*parts[1:], ""]):
        if part in _NOUNS and {before, after} & _OF_ACCESS:
            return True
    if parts[-1] == "API":
        return parts[0] in _OF_ACCESS
    return parts[-1] in _NOUNS and _OF_DATA.isdisjoint(parts[-2:-1])


def redacted(text: str, values: Iterable[str] = ()) -> str:
    """The text with every secret in it replaced by ***.

    `values`: texts that are secret wherever they occur, e.g. from `secret_values`.
    """
    for value in values:
        text = text.replace(value, HIDDEN)
    if "://" in text:
        text = _USERINFO.sub(_without_user, text)
        text = _WEBHOOK.sub(rf"\1{HIDDEN}", text)
    if "=" in text:
        text = _ASSIGNED.sub(_without_assigned, _PARAMETER.sub(_without_parameter, text))
    if ":" in text:
        text = _HEADER.sub(_without_header, _QUOTED.sub(_without_quoted, text))
    if " -" in text:
        text = _OPTION.sub(_without_option, text)
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(HIDDEN, text)
    if "earer" in text or "EARER" in text:
        text = _BEARER.sub(rf"\1{HIDDEN}", text)
    return _SHAPES.sub(HIDDEN, text) if any(sign in text for sign in _SHAPE_SIGNS) else text


def holds_secret(text: str) -> bool:
    """Whether `redacted` would change the text."""
    return redacted(text) != text


def ends_in_key(text: str) -> bool:
    """Whether the text ends within a private key, which spans lines; more of it must be read to redact the key."""
    begins = [found.end() for found in _KEY_BEGINS.finditer(text)]
    return bool(begins) and _KEY_ENDS not in text[begins[-1] :]


def secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables with secret names, longest first, since one may contain another."""
    found = {value for name, value in environment.items() if is_secret_name(name) and _is_value(value)}
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def without_secrets(value: T, values: Iterable[str] = ()) -> T:
    """JSON values or dataclasses with `redacted` applied to every text, and texts under secret names replaced.

    Parts without secrets are returned as they are, not copied.
    """
    known = tuple(values)
    return _walked(value, known)  # type: ignore[no-any-return]


_SHORT = 80  # characters
_PLAIN = frozenset((int, float, bool, type(None)))


@lru_cache(maxsize=4096)
def _short(text: str, known: tuple[str, ...]) -> str:
    return redacted(text, known)


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    """The names of a dataclass's fields; empty for other classes."""
    return tuple(item.name for item in dataclasses.fields(kind) if item.init) if dataclasses.is_dataclass(kind) else ()


def _walked(value: Any, known: tuple[str, ...]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is str:  # short texts, such as states of ranks, repeat often: they are cached
        text = _short(value, known) if len(value) < _SHORT else redacted(value, known)
        return value if text == value else text
    if isinstance(value, Mapping):
        new = {key: _named(key, item, known) for key, item in value.items()}
        return new if any(new[key] is not value[key] for key in new) else value
    if kind in (list, tuple):
        if _PLAIN.issuperset(map(type, value)):
            return value
        items = [_walked(item, known) for item in value]
        return kind(items) if any(one is not other for one, other in zip(items, value)) else value
    if names := _field_names(kind):  # type: ignore[arg-type]  # classes are hashable
        old = {name: getattr(value, name) for name in names}
        changed = {name: new for name, item in old.items() if (new := _walked(item, known)) is not item}
        return dataclasses.replace(value, **changed) if changed else value
    return value


def _named(key: Any, item: Any, known: tuple[str, ...]) -> Any:
    hidden = isinstance(item, str) and item and isinstance(key, str) and _is_unambiguous(key) and is_secret_name(key)
    return HIDDEN if hidden and not item.startswith("$") else _walked(item, known)


def _is_unambiguous(name: str) -> bool:
    """Whether a secret name cannot mean something else: `token=5` is a position in a document, tiktoken a package."""
    return name.isupper() or _UNAMBIGUOUS.search(name) is not None


def _is_value(value: str) -> bool:
    return len(value) >= _LEAST_VALUE and not value.startswith("/") and not value.isdigit()


def _without_user(match: re.Match[str]) -> str:
    """Hides a URL's user and password. A user alone stays ("ssh://git@host"), except with http: it may be a token."""
    user = match["user"] if match["user"] is not None else match["odd"]
    if user == HIDDEN or user.startswith("$"):
        return match[0]
    before = match.string[max(match.start() - 5, 0) : match.start()].lower()
    return f"://{HIDDEN}@" if ":" in user or before.endswith(("http", "https")) else match[0]


def _without_parameter(match: re.Match[str]) -> str:
    sign, name, value = match.groups()
    secret = is_secret_name(name) or name.upper() in _PARAMETERS
    return f"{sign}{name}={HIDDEN}" if secret and not value.startswith("$") else match[0]


def _without_assigned(match: re.Match[str]) -> str:
    """Hides the value of NAME=value and --name=value."""
    dashes, name, value = match.groups()
    reference = value.strip("\"'").startswith(("$", "`"))
    certain = dashes or (_is_unambiguous(name) and not value.rstrip(":.)").isdigit())
    if not certain or reference or not is_secret_name(name):
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{dashes}{name}={quote}{HIDDEN}{quote}"


def _without_option(match: re.Match[str]) -> str:
    """Hides the value of `--password VALUE` and of curl's `-u USER:PASSWORD`."""
    name, space, value = match.groups()
    secret = ":" in value if name in ("-u", "--user") else is_secret_name(name)
    return f"{name}{space}{HIDDEN}" if secret and value not in (HIDDEN, *_SENTENCE) else match[0]


def _without_header(match: re.Match[str]) -> str:
    """Hides the value of `X-Api-Key: value`."""
    name, colon, _ = match.groups()
    return f"{name}{colon}{HIDDEN}" if is_secret_name(name) else match[0]


def _without_quoted(match: re.Match[str]) -> str:
    """Hides the value of `"password": "value"`, as JSON and Python write it."""
    quote, name, colon, other, value = match.groups()
    if not _is_unambiguous(name) or value.startswith("$") or not is_secret_name(name):
        return match[0]
    return f"{quote}{name}{quote}{colon}{other}{HIDDEN}{other}"
