"""What is redacted and what is not: hiding the harness's own figures is as bad as leaking secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.core import secrets
from harness.core.errors import DiskFullError
from harness.core.secrets import (
    HIDDEN,
    holds_secret,
    is_secret_name,
    redacted,
    secret_values,
    without_secrets,
    without_secrets_in,
)

# Assembled from parts, so that no secret scanner reports this file. Each must be removed from every text.
VALUE = "hunter2-hunter2"
SHAPES = [
    "ghp" + "_" + "a1B2" * 9,
    "github" + "_pat_" + "a1B2" * 9,
    "glpat" + "-" + "a1B2-" * 4,
    "AKIA" + "ABCDEFGH12345678",
    "xoxb" + "-123456789012-abcdef",
    "hf" + "_" + "aBcD" * 8,
    "sk" + "-proj-" + "a1B2" * 8,
    "eyJ" + "hbGciOiJIUzI1NiJ9" + "." + "eyJzdWIiOiIxMjM0In0" + "." + "abc_def-123",
]
HELD = [
    f"https://user:{VALUE}@example.org/x.git",
    f"https://{VALUE}@example.org/x.git",
    f"https://u:{VALUE}/with@slash@example.org/x",
    f"ssh://git:{VALUE}@example.org/x.git",
    f"x @ git+https://u:{VALUE}@example.org/x.git@main",
    f"postgres://u:{VALUE}@db:5432/name",
    f"cannot clone https://u:{VALUE}@example.org: HTTP 403",
    f"https://example.org/x?a=1&token={VALUE}&b=2",
    f"https://example.org/x?X-Amz-Signature={VALUE}",
    f"https://example.org/x?sig={VALUE}#part",
    f"https://hooks.slack.com/services/T0/B0/{VALUE}",
    f"https://chat.example.org/hooks/{VALUE}",
    f"export DB_PASS={VALUE}",
    f"PGPASSWD='{VALUE} with a space'",
    f"MYCREDENTIAL={VALUE}",
    f"AUTH={VALUE}",
    f"--export=ALL,WANDB_API_KEY={VALUE}",
    f"--token={VALUE}",
    f"tool --password {VALUE} run",
    f"--password {VALUE}",
    f"curl -u me:{VALUE} https://example.org",
    f"curl -H 'Authorization: Bearer {VALUE}'",
    f"Authorization: Basic {VALUE}",
    f"X-Api-Key: {VALUE}",
    f"Cookie: session={VALUE}",
    f"got Bearer {VALUE}",
    f'{{"password": "{VALUE}"}}',
    f"{{'api_key': '{VALUE}'}}",
    f"tool --wandb-api-key {VALUE} run",
    f"Server=db;Password={VALUE};Port=1",
    f"-----BEGIN RSA PRIVATE KEY-----\n{VALUE}\n-----END RSA PRIVATE KEY-----",
    *SHAPES,
]
PLAIN = [
    "git@github.com:NVIDIA/Megatron-LM.git",
    "ssh://git@github.com/NVIDIA/Megatron-LM.git",
    "https://github.com/NVIDIA/Megatron-LM/commit/0123456789abcdef0123456789abcdef01234567",
    "x @ git+https://github.com/NVIDIA/x.git@main",
    "document 3, token=5: key=2 differs",
    "tokens=4096 max_tokens=8192",
    "MAX_TOKENS=4096 TOKENIZERS_PARALLELISM=false",
    'export HF_TOKEN="$(cat ~/.hf)"',
    "export HF_TOKEN=$OTHER",
    "https://${USER_TOKEN}@example.org",
    "stacks.a.env.DB_PASSWORD: names a secret",
    "KeyError: 'token'",
    '{"key": "stacks.a", "tokens": "many"}',
    '{"tiktoken": "0.9.1"}',
    "tiktoken==0.9.1 python-key==2.0",
    "moe-token-dispatcher-type cannot be passed on",
    "Slurm refuses --wckey when accounting has none: --wckey=team",
    "--set wants KEY=VALUE",
    "the author of a basic key: nobody",
    "http://host:8080/path@v1",
    "tp2-pp1-cp1-sft-0123abcd at /srv/me/x@y",
    "api_key_env=OPENAI_API_KEY ssh-key-file=/run/keys/deploy",
    "args.hf_token=None, wandb_key=null; DB_PASSWORD=true",
]


@pytest.mark.parametrize("text", HELD)
def test_a_secret_is_replaced_wherever_it_occurs(text: str) -> None:
    for shown in (redacted(text), redacted(f"before {text} after"), redacted(f"a\n{text}\nb")):
        assert VALUE not in shown
        assert not any(shape in shown for shape in SHAPES)
        assert HIDDEN in shown
    assert holds_secret(text)
    assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize("text", PLAIN)
def test_texts_without_secrets_are_unchanged(text: str) -> None:
    assert redacted(text) == text


def test_the_text_around_a_secret_is_kept() -> None:
    assert redacted(f"clone https://u:{VALUE}@example.org/x.git failed") == "clone https://***@example.org/x.git failed"
    assert redacted(f"https://example.org/x?token={VALUE}&b=2") == "https://example.org/x?token=***&b=2"
    assert redacted(f"export DB_PASS={VALUE}; run") == "export DB_PASS=***; run"


@pytest.mark.parametrize("text", HELD)
def test_serialised_texts_stay_well_formed(text: str) -> None:
    json.loads(redacted(json.dumps({"a": text, "b": [text, 1]})))
    element = ElementTree.Element("a", said=text)
    element.text = text
    ElementTree.fromstring(redacted(ElementTree.tostring(element, encoding="unicode")))


def test_names_are_read_by_their_parts() -> None:
    secret = ["DB_PASS", "PGPASSWD", "MYCREDENTIAL", "AUTH", "HF_TOKEN", "apiKey", "X-Auth", "PASSWORD2", "MYSQL_PWD"]
    secret += ["AWS_SECRET_ACCESS_KEY", "OPENAI_API", "SESSION_COOKIE", "github_token", "NETRC_CREDENTIALS"]
    secret += ["--wandb-api-key", "AWS_ACCESS_KEY_ID", "TOKEN_GITHUB", "HF_TOKEN_CI", "--token", "SLACK_WEBHOOK_URL"]
    secret += ["SLACK_WEBHOOK_PATH", "DB_PASSWORD_FILE"]
    assert [name for name in secret if not is_secret_name(name)] == []
    plain = ["PWD", "OLDPWD", "PATH", "AUTHOR", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "BYPASS", "RAPID", "KEYS", ""]
    plain += ["wckey", "--wckey", "tiktoken-pattern", "moe_token_dispatcher_type", "use-gigatoken", "turkey", "monkey"]
    plain += ["fim-eod-token", "rl-skip-bos-token", "forward_pass", "num_key_heads"]
    plain += ["input_key", "max_token", "third_pass", "by_pass", "func_signature", "token"]
    plain += ["num_sms_dispatch_api", "seq_length_key", "key_hidden_size", "auth_enabled", "api_key_env"]
    assert [name for name in plain if is_secret_name(name)] == []


def test_values_of_the_environment_are_secret_wherever_they_occur() -> None:
    environment = {"HF_TOKEN": "word-of-mine", "A_KEY": "short", "PATH": "/usr/bin:/bin", "DB_PASS": "word-of-mine-too"}
    environment |= {"INPUT_KEY": "question-and-answer"}
    known = secret_values(environment)
    assert known == ("word-of-mine-too", "word-of-mine")
    assert redacted("KeyError: word-of-mine-too or word-of-mine", known) == "KeyError: *** or ***"


@dataclass(frozen=True)
class _Inner:
    text: str
    numbers: list[int]


@dataclass(frozen=True)
class _Outer:
    inner: tuple[_Inner, ...]
    env: dict[str, str] = field(default_factory=dict)
    key: str = ""


def test_structures_are_searched_and_only_changed_parts_are_new() -> None:
    clean = _Inner(text="as it is", numbers=[1, 2])
    value = _Outer(inner=(clean, _Inner(text=f"https://u:{VALUE}@h", numbers=[3])), env={"DB_PASS": VALUE, "A": "1"})
    shown = without_secrets(value)
    assert shown.inner[1].text == "https://***@h"
    assert shown.env == {"DB_PASS": HIDDEN, "A": "1"}
    assert shown.inner[0] is clean
    assert without_secrets(clean) is clean
    assert without_secrets({"tiktoken": "0.9.1"}) == {"tiktoken": "0.9.1"}
    assert without_secrets({"env": {"HF_TOKEN": "${HF_TOKEN}"}}) == {"env": {"HF_TOKEN": "${HF_TOKEN}"}}


def test_long_hostile_texts_are_searched_in_one_pass() -> None:
    """Each of these takes hours if a pattern starts over at every character."""
    for piece in (
        "a",
        "a_",
        "https://",
        "://a:",
        "a=",
        "?a=",
        "--a ",
        '"a',
        "-----BEGIN PRIVATE KEY-----",
        "x-",
        "eyJ",
        "--key aA",
        "-u a:b ",
        "curl -u a:b ",
        "x_key=aAaA.aA",
    ):
        text = piece * (300_000 // len(piece)) + " :=/ -PRIVATE KEY bearer ://"
        assert redacted(text)
        assert redacted(
            f"--x-key {text[:299_000].replace(' ', 'a')}%1 --password {text[:299_000].replace(' ', '.')}%1 "
        )


@cache
def _flags_of_upstream() -> tuple[str, ...]:
    """The flags of the installed Megatron's own parser; in a process of its own, which has torch afterwards."""
    code = (
        "import argparse, json\n"
        "from megatron.training.arguments import add_megatron_arguments\n"
        "parser = add_megatron_arguments(argparse.ArgumentParser())\n"
        "print(json.dumps([name for action in parser._actions for name in action.option_strings]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return tuple(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "said",
    [
        "{flag} cannot be passed on",
        "error: argument {flag}: expected one argument",
        "pretrain_gpt.py {flag} alltoall",
        "pretrain_gpt.py {flag}=alltoall",
        '{{"{name}": "alltoall"}}',
        "{name} = alltoall, {name}: alltoall",
        "{NAME}=alltoall",
    ],
)
def test_no_flag_of_upstream_is_taken_for_a_secret(said: str) -> None:
    """A flag's name may look like a secret's (`--eod-token`); the ordinary word that is its value does not."""
    flags = _flags_of_upstream()
    assert len(flags) > 500
    texts = [
        said.format(flag=flag, name=flag.lstrip("-").replace("-", "_"), NAME=flag.lstrip("-").replace("-", "_").upper())
        for flag in flags
    ]
    assert [(text, redacted(text)) for text in texts if redacted(text) != text] == []


# Names of which only the value says whether they hold a secret, and what such names hold in datasets, models and logs.
DOUBTFUL = ["input_key", "reward_fn_key", "state_dict_key", "max_token", "new-token", "func_signature", "third_pass"]
DOUBTFUL += ["by_pass", "unexpected_key", "group-key", "attention-key", "first_auth", "KEY", "token", "ANSWER_KEY"]
ORDINARY = ["question", "data_source", "layers.csv", "decoder.layers.0.weight", "4096", "off", "mp_rank_00"]
ORDINARY += [
    "iter_0000100",
    "GPTModel",
    "fusedAttention2",
    "float8_e4m3fn",
    "0x7f3a12b4c8d0",
    "lambda",
    "a/b.json",
    "head",
]
CERTAIN = ["hf_token", "wandb-api-key", "password", "DB_PASSWORD", "client_secret", "SMTP_PASS", "apiKey"]
DRAWN = ["a1B2c3D4e5", "0f3d9c1e7b5a4d2f8e6c", "123e4567-e89b-12d3-a456-426614174000", "dXNlcjpwYXNzd29yZA=="]
ASSIGNED = ["{name}={value}", "{name}='{value}'", '{{"{name}": "{value}"}}', "--{name}={value}", "f(x, {name}={value})"]


@pytest.mark.parametrize("name", DOUBTFUL)
@pytest.mark.parametrize("said", [*ASSIGNED, "--{name} {value}", "{name}: {value}", "KeyError: '{name}': '{value}'"])
def test_a_name_of_many_meanings_hides_no_ordinary_word(name: str, said: str) -> None:
    if name == "token" and said.startswith("--"):
        return  # an option of this name alone has one meaning
    for value in ORDINARY:
        text = said.format(name=name, value=value)
        assert redacted(text) == text
        assert without_secrets({name: value}) == {name: value}
        assert secret_values({name: value}) == ()


@pytest.mark.parametrize("name", DOUBTFUL)
@pytest.mark.parametrize("said", ASSIGNED)
def test_a_name_of_many_meanings_hides_what_looks_drawn(name: str, said: str) -> None:
    for value in DRAWN:
        assert value not in redacted(said.format(name=name, value=value))


@pytest.mark.parametrize("name", CERTAIN)
@pytest.mark.parametrize("said", ASSIGNED)
def test_a_name_of_one_meaning_hides_any_value(name: str, said: str) -> None:
    for value in ("swordfish", "hunter2", "correct-horse-battery", *DRAWN):
        assert value not in redacted(said.format(name=name, value=value))


@pytest.mark.parametrize("name", ["--hf-token", "--wandb-api-key", "--password", "--token", "X-Api-Key:", "bearer"])
@pytest.mark.parametrize(
    "after", ["cannot be passed on", "requires a value", "wants 1 argument", "authentication failed.", "already given;"]
)
def test_a_sentence_about_a_secret_is_shown_whole(name: str, after: str) -> None:
    for text in (f"{name} {after}", f"error: argument {name} {after}", f"unknown {name}\n{after}"):
        assert redacted(text) == text
    assert HIDDEN in redacted(f"{name} {VALUE} {after}")


@pytest.mark.parametrize("text", ["python -u train.py:3", "torchrun -u host:port", "docker run --user 1000:1000 image"])
def test_a_user_and_password_are_an_option_of_curl(text: str) -> None:
    assert redacted(text) == text
    assert redacted("curl --user me:swordfish host") == "curl --user *** host"


def test_secrets_known_by_shape_or_value_are_removed_and_the_rest_is_kept_byte_for_byte(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_bytes(b"step 1\r\n\xff\xfe with hunter2-hunter2\ncloning https://me:pw@host/x\nno newline at the end")
    without_secrets_in(log, ["hunter2-hunter2"])
    assert log.read_bytes() == b"step 1\r\n\xff\xfe with ***\ncloning https://***@host/x\nno newline at the end"
    assert list(tmp_path.iterdir()) == [log]


def test_every_line_of_a_private_key_is_removed(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    kind = "RSA PRIVATE KEY"
    key = f"-----BEGIN {kind}-----\n" + "MIIEow\n" * 30 + f"-----END {kind}-----"
    log.write_text(f"loading\n{key}\nstep 1\n{key[:40]}")
    without_secrets_in(log, [])
    assert log.read_text() == "loading\n***\nstep 1\n***"


def test_what_only_begins_like_a_private_key_hides_a_bounded_part_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_text("-----BEGIN PRIVATE KEY-----\n" + "step 1\n" * 100_000)
    without_secrets_in(log, [])
    left = log.read_text()
    assert left.startswith("***")
    assert 600_000 < len(left) < 700_000


def test_a_log_without_a_secret_is_not_written_again(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_text("step 1\n")
    before = log.stat()
    without_secrets_in(log, ["hunter2-hunter2"])
    assert log.stat().st_ino == before.st_ino


def test_a_missing_log_is_not_an_error(tmp_path: Path) -> None:
    without_secrets_in(tmp_path / "rank.log", [])
    assert list(tmp_path.iterdir()) == []


def test_without_room_the_log_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "rank.log"
    log.write_text("hunter2-hunter2\n")

    def full(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    has_secret = secrets._has_secret(log, ["hunter2-hunter2"])
    monkeypatch.setattr(secrets, "_has_secret", lambda *_: has_secret)
    monkeypatch.setattr(secrets, "_clean", full)
    with pytest.raises(DiskFullError, match="free some space on its disk"):
        without_secrets_in(log, ["hunter2-hunter2"])
    assert log.read_text() == "hunter2-hunter2\n"
    assert list(tmp_path.iterdir()) == [log]
