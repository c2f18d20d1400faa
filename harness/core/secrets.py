"""Secrets in texts and logs: detection and redaction.

A secret is known by its name (a variable DB_PASSWORD, a header Authorization, a query parameter signature), by its
shape (a GitHub token, a JSON web token, a private key), by its place (user and password of a URL, the path of a chat
webhook), or by its value, when the caller knows it from the environment. No matched value spans a quote, a backslash or
a space, so redacted JSON, YAML, HTML or XML stays well-formed. The code under test may print secrets: its logs are
redacted once nothing writes to them any more.

Names are of two kinds. DB_PASSWORD and hf_token mean nothing but a secret: any value of theirs is hidden, except plain
words where a sentence may go on ("--hf-token requires a value"). input_key, max_token and third_pass may mean anything:
only values that look drawn at random are hidden, since no ordinary word does.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
HIDDEN = "***"
NAMES = "PASSWORD, SECRET, TOKEN, KEY, CREDENTIAL, AUTH, COOKIE and the like"  # for messages
_MIN_VALUE = 8  # characters of an environment variable's value; shorter ones occur by chance

# Names are judged by their whole parts: DB_PASSWD has two, apiKey too. Only what ends no other word may have more
# letters before it (PGPASSWD, MYCREDENTIAL); "tiktoken" and "wckey" hold no secret.
_ENDINGS = (
    *("PASSWD", "PASSWORD", "PASSPHRASE", "SECRET", "SECRETS", "CREDENTIAL", "CREDENTIALS", "CREDS", "APIKEY"),
    *("ACCESSKEY", "SECRETKEY", "PRIVATEKEY", "ACCESSTOKEN", "APITOKEN", "AUTHTOKEN", "REFRESHTOKEN"),
)
_ANYWHERE = frozenset(("AUTHORIZATION", "COOKIE", "COOKIES", "WEBHOOK"))
# The last part, the noun that the other parts are about; such a name may mean a secret: token-dispatcher-type cannot.
_NOUNS = frozenset(("PASS", "PWD", "TOKEN", "KEY", "AUTH", "SIGNATURE"))
# Beside a noun these make it certain, at any place: AWS_ACCESS_KEY_ID, GITHUB_TOKEN_CI, TOKEN_GITHUB.
_OF_ACCESS = frozenset(
    (
        *("ACCESS", "API", "AUTH", "BEARER", "BOT", "DEPLOY", "ENCRYPTION", "OAUTH", "PRIVATE", "REFRESH", "SECRET"),
        *("SESSION", "SIGNING", "SSH", "ANTHROPIC", "AWS", "AZURE", "DB", "GH", "GITHUB", "GITLAB", "GOOGLE", "HF"),
        *("HUB", "HUGGINGFACE", "NGC", "NPM", "OPENAI", "PYPI", "SLACK", "WANDB"),
    )
)
# Certain as the whole name of an option, a URL's parameter or a variable: --token, AUTH; but "token=the" is a text's.
_WHOLE = frozenset(("TOKEN", "AUTH"))
# The last part of a name that says where a secret is, not what it is: api_key_env: OPENAI_API_KEY.
_ABOUT = frozenset(("ENV", "VAR", "NAME", "FILE", "PATH", "DIR"))
_PARAMETERS = frozenset(("SIG", "CODE", "JWT"))  # secret in URL queries, in addition to the names above

# Words, also joined ones (created_at, don't), and numbers that are too short for a secret.
_PLAIN_WORDS = re.compile(r"[A-Z]?[a-z]{0,15}(?:[_.'-][A-Z]?[a-z]{0,15})*|\d{1,5}")
_NO_VALUE = frozenset(("None", "null", "true", "false", "True", "False"))
_SMALL = re.compile(r"\d{1,4}")
_DRAWN = 8  # characters; a part of a value that has as many and is no ordinary word looks drawn at random
_ORDINARY = re.compile(
    r"[a-z]{0,20}(?:[A-Z]{1,15}[a-z]{2,20})*[A-Z]{0,15}\d*|0x[0-9a-f]+"
)  # GPTModel, fusedNorm2, 0000100
_LOOK_BACK = 500  # characters before an option `-u` that may name its program

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
_BEARER = re.compile(r"(?i)\b(bearer +)([A-Za-z0-9._~+/=-]{8,})")
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
    """Return whether a variable, option or key of this name holds a secret, whatever its value: DB_PASSWD, apiKey."""
    parts = _parts(name)
    if any(part.endswith(_ENDINGS) or part in _ANYWHERE for part in parts):
        return True
    if parts[-1:] and parts[-1] in _ABOUT:
        return False
    for before, part, after in zip(["", *parts], parts, [*parts[1:], ""]):
        if part in _NOUNS and {before, after} & _OF_ACCESS:
            return True
    if parts[-1:] == ["API"]:
        return parts[0] in _OF_ACCESS
    if len(parts) == 1 and parts[0] in _WHOLE:
        return name.isupper() or name.startswith("--")
    if name[:2] in ("X-", "x-") and parts[-1:] and parts[-1] in _NOUNS:  # headers of HTTP
        return True
    # MYSQL_PWD and SMTP_PASS are chosen by people and need not look drawn; a third_pass is one over data.
    return len(parts) > 1 and (parts[-1] == "PWD" != parts[0] != "OLD" or (parts[-1] == "PASS" and name.isupper()))


@cache
def _may_be_secret(name: str) -> bool:
    return _parts(name)[-1:] != ["PWD"] and not _NOUNS.isdisjoint(_parts(name)[-1:])


def _parts(name: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    parts = [part.rstrip("0123456789") for part in re.split(r"[^A-Z0-9]+", spaced.upper())]
    return [part for part in parts if part]


def _is_secret(name: str, value: str, *, spoken: bool = False) -> bool:
    """Return whether the value of this name is to be hidden. `spoken`: a sentence about the name may go on with it."""
    if value in ("", HIDDEN) or value.startswith(("$", "`")):
        return False
    value = value.rstrip(".,;:!?)]}")
    if value in _NO_VALUE:
        return False
    if is_secret_name(name):
        return not (_PLAIN_WORDS if spoken else _SMALL).fullmatch(value)
    return _may_be_secret(name) and _looks_drawn(value)


def _looks_drawn(value: str) -> bool:
    """Return whether letters and digits are mixed as no word, number or identifier mixes them."""
    return any(len(part) >= _DRAWN and not _ORDINARY.fullmatch(part) for part in re.split(r"[^A-Za-z0-9]+", value))


def redacted(text: str, values: Iterable[str] = ()) -> str:
    """Return the text with every secret in it replaced by ***.

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
    if "--" in text or "-u " in text:
        text = _OPTION.sub(_without_option, text)
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(HIDDEN, text)
    if "earer" in text or "EARER" in text:
        text = _BEARER.sub(_without_bearer, text)
    return _SHAPES.sub(HIDDEN, text) if any(sign in text for sign in _SHAPE_SIGNS) else text


def holds_secret(text: str) -> bool:
    """Return whether `redacted` would change the text."""
    return redacted(text) != text


def ends_in_key(text: str) -> bool:
    """Return whether the text ends within a private key, which spans lines; more of it must be read to redact
    the key.
    """
    begins = [found.end() for found in _KEY_BEGINS.finditer(text)]
    return bool(begins) and _KEY_ENDS not in text[begins[-1] :]


def secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables with secret names, longest first, since one may contain another."""
    found = {value for name, value in environment.items() if _is_secret(name, value) and _is_value(value)}
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def without_secrets(value: T, values: Iterable[str] = ()) -> T:
    """Return JSON values or dataclasses with `redacted` applied to every text, and texts under secret names replaced.

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
    """Return the names of a dataclass's fields; empty for other classes."""
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
    hidden = isinstance(item, str) and isinstance(key, str) and _is_secret(key, item)
    return HIDDEN if hidden else _walked(item, known)


def _is_value(value: str) -> bool:
    return len(value) >= _MIN_VALUE and not value.startswith("/") and not value.isdigit()


def _without_user(match: re.Match[str]) -> str:
    """Hides a URL's user and password. A user alone stays ("ssh://git@host"), except with http: it may be a token."""
    user = match["user"] if match["user"] is not None else match["odd"]
    if user == HIDDEN or user.startswith("$"):
        return match[0]
    before = match.string[max(match.start() - 5, 0) : match.start()].lower()
    return f"://{HIDDEN}@" if ":" in user or before.endswith(("http", "https")) else match[0]


def _without_parameter(match: re.Match[str]) -> str:
    sign, name, value = match.groups()
    place = name.upper() in _PARAMETERS or _may_be_secret(name)
    secret = _is_secret(f"--{name}", value) or (place and value[0] != "$" and not _PLAIN_WORDS.fullmatch(value))
    return f"{sign}{name}={HIDDEN}" if secret else match[0]


def _without_assigned(match: re.Match[str]) -> str:
    """Hides the value of NAME=value and --name=value."""
    dashes, name, value = match.groups()
    if not _is_secret(f"{dashes}{name}", value.strip("\"'")):
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{dashes}{name}={quote}{HIDDEN}{quote}"


def _without_option(match: re.Match[str]) -> str:
    """Hides the value of `--password VALUE` and of curl's `-u USER:PASSWORD`, which is another option elsewhere."""
    name, space, value = match.groups()
    if name in ("-u", "--user"):
        line = match.string[max(match.start() - _LOOK_BACK, 0) : match.start()].rpartition("\n")[2]
        password = value.partition(":")[2]
        secret = bool(password) and ("curl" in line or _looks_drawn(password))
    else:
        secret = _is_secret(name, value, spoken=True)
    return f"{name}{space}{HIDDEN}" if secret else match[0]


def _without_header(match: re.Match[str]) -> str:
    """Hides the value of `X-Api-Key: value`."""
    name, colon, value = match.groups()
    return f"{name}{colon}{HIDDEN}" if _is_secret(name, value.split()[-1], spoken=True) else match[0]


def _without_bearer(match: re.Match[str]) -> str:
    return match[0] if _PLAIN_WORDS.fullmatch(match[2].rstrip(".")) else f"{match[1]}{HIDDEN}"


def _without_quoted(match: re.Match[str]) -> str:
    """Hides the value of `"password": "value"`, as JSON and Python write it."""
    quote, name, colon, other, value = match.groups()
    return f"{quote}{name}{quote}{colon}{other}{HIDDEN}{other}" if _is_secret(name, value) else match[0]


_MAX_KEY = 65536  # bytes; what only begins like a private key is redacted in pieces of this size


def without_secrets_in(log: Path, values: Collection[str]) -> None:
    """Replace each secret in a log by ***; a log without secrets is not touched, nor a missing one.

    `values`: secrets known by value, see `secret_values`. Bytes that are not UTF-8 are kept. DiskFullError if there is
    no space for the new log; the old one is then kept.
    """
    from harness.core.run.run_dir import needs_room, opened, temporary_beside  # not for --help, which loads this module

    try:
        if not _has_secret(log, values):
            return
    except FileNotFoundError:
        return
    with needs_room(log):
        temporary = temporary_beside(log)
        try:
            with opened(log) as old, temporary.open("xb") as new:
                new.writelines(_clean(piece, values) for piece in _pieces(old))
            temporary.replace(log)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def _has_secret(log: Path, values: Collection[str]) -> bool:
    from harness.core.run.run_dir import opened

    with opened(log) as stream:
        return any(_clean(piece, values) != piece for piece in _pieces(stream))


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines, those of a private key joined: no other secret spans lines."""
    piece, in_key = b"", False
    for line in lines:
        piece += line
        if b"PRIVATE KEY" in line:  # so that each line is searched once, however long the key
            in_key = ends_in_key(line.decode("latin-1"))
        if not in_key or len(piece) > _MAX_KEY:
            yield piece
            piece, in_key = b"", False
    yield piece


def _clean(piece: bytes, values: Collection[str]) -> bytes:
    return redacted(piece.decode("utf-8", "surrogateescape"), values).encode("utf-8", "surrogateescape")
