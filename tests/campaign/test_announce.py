from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from harness.campaign.announce import announce, without_secrets
from harness.cli.cli import main
from tests.sample_report import sample_report

TELL = "import os,sys,pathlib; pathlib.Path(os.environ['HARNESS_RUN_DIR'], 'told').write_text(sys.stdin.read())"


def test_every_receiver_is_told_and_one_that_fails_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = sample_report()
    announce(["false", shlex.join([sys.executable, "-c", TELL])], report, tmp_path, 1)
    value = json.loads((tmp_path / "told").read_text())
    assert (value["run_id"], value["exit_code"]) == (report.run_id, 1)
    assert capsys.readouterr().err == "harness: --notify false: ended with exit code 1\n"


def test_the_address_of_a_webhook_is_not_kept_in_files() -> None:
    command = ["harness", "run", "a.yaml", "--notify", "https://hooks.example.org/T0/secret", "--notify=mail me"]
    assert without_secrets(command) == [*command[:4], "https://hooks.example.org/...", "--notify=mail"]
    assert without_secrets(["x", "--not", "http://a.example/secret"]) == ["x", "--not", "http://a.example/..."]
    assert without_secrets(["x", "--notify", "curl -H 'X: hunter2' u"]) == ["x", "--notify", "curl"]
    assert without_secrets(["x", "--notify", "https://a b/secret"]) == ["x", "--notify", "***"]
    assert without_secrets(["x", "--only", "https://u:p@a"]) == ["x", "--only", "https://***@a"]
    assert without_secrets(["x", "--only", "http://a"]) == ["x", "--only", "http://a"]
    assert without_secrets(["x", "--notify=http://a.example/secret"]) == ["x", "--notify=http://a.example/..."]


@pytest.mark.parametrize("receiver", ["ftp://example.org/x", "mail 'open"])
def test_a_receiver_that_cannot_be_is_refused_before_the_run(receiver: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "none.yaml", "--notify", receiver])
    assert ended.value.code == 2
    assert "argument --notify: " in capsys.readouterr().err


def test_a_run_that_ends_before_it_is_judged_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "none.yaml", "--notify", "tee told.json"]) == 2
    value = json.loads((tmp_path / "told.json").read_text())
    assert (value["verdict"], value["exit_code"], value["matrix"]) == ("error", 2, "none.yaml")
    assert value["text"].startswith("*ERROR* none.yaml: ended with exit code 2 before it was judged\n")
    assert "none.yaml" in value["text"].splitlines()[1]
    assert main(["report", "latest", "--notify", "tee told.json"]) == 2
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["matrix"] == "latest"
    assert told.keys() == value.keys()
