from __future__ import annotations

from harness.infra.command import Answer, ask


def test_an_answer_holds_what_was_printed() -> None:
    assert ask(["sh", "-c", "echo out; echo err >&2"]) == Answer(text="out\n", stderr="err\n")


def test_commands_that_are_missing_fail_or_hang_have_a_problem() -> None:
    assert ask(["no-such-command-here"]).problem == "not on PATH"
    assert ask(["/no/such/command"]).problem == "no such file"
    assert ask(["sh", "-c", "echo first >&2; echo why >&2; exit 4"]).problem == "exit code 4: why"
    assert ask(["sleep", "60"], patience_s=0.01).problem == "no answer within 0.01 s"
