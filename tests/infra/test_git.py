from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness.core.errors import InfrastructureError
from harness.infra import git
from harness.infra.git_history import Repository


def test_a_hook_of_another_repository_does_not_redirect_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        git.output(tmp_path / name, "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "there" / ".git"))
    assert git.output(tmp_path / "here", "rev-parse", "--show-toplevel").strip() == str(tmp_path / "here")


def test_a_failed_command_says_what_where_and_why(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=rf"git rev-parse --verify in {tmp_path} failed:\n.*not a git repo"):
        git.output(tmp_path, "rev-parse", "--verify", "HEAD")


def test_missing_git_is_an_infrastructure_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match="git config failed"):
        git.run(tmp_path, "status")


def test_standard_input_is_passed_to_git(tmp_path: Path) -> None:
    git.output(tmp_path, "init", "--quiet")
    hashed = git.output(tmp_path, "hash-object", "--stdin", stdin="some text\n").strip()
    assert hashed == "7b57bd29ea8afbdeb9bac64cf7074f4b531492a8"  # what git 2.39 prints for this text from a pipe


def repository(folder: Path) -> Path:
    """A repository with one commit."""
    folder.mkdir()
    git.output(folder, "init", "--quiet")
    (folder / "file").write_text("text\n")
    git.output(folder, "add", "file")
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.com")
    subprocess.run(["git", "-C", folder, *identity, "commit", "--quiet", "-m", "one"], check=True)
    return folder


def test_no_program_of_a_repository_is_executed(tmp_path: Path) -> None:
    here, proof = repository(tmp_path / "here"), tmp_path / "proof"
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0" >> {proof}\n')
    program.chmod(0o755)
    for hook in ("post-checkout", "reference-transaction", "post-index-change"):
        (here / ".git" / "hooks" / hook).symlink_to(program)
    for name in ("core.fsmonitor", "gpg.program", "core.alternateRefsCommand"):
        git.output(here, "config", name, str(program))
    git.output(here, "config", "log.showSignature", "true")
    (here / ".git" / "info" / "attributes").write_text("file filter=odd\n")
    (tmp_path / "included").write_text(
        f'[filter "odd"]\n  smudge = {program}\n  clean = {program}\n  required = true\n'
    )
    git.output(here, "config", "include.path", str(tmp_path / "included"))
    git.output(here, "worktree", "add", "--quiet", "--detach", str(tmp_path / "worktree"), "HEAD")
    git.output(here, "status", "--porcelain")
    git.output(here, "show", "--no-patch", "--format=%s", "HEAD")
    assert not proof.exists()
    subprocess.run(["git", "-C", here, "worktree", "add", "--quiet", "--detach", tmp_path / "other"], check=True)
    assert proof.exists()  # git without these settings runs it


@pytest.mark.parametrize("name", ["odd", "o=d.driver=x", "Odd.driver", "a b"])
def test_a_merge_driver_of_a_repository_is_replaced_by_gits_own_merge(tmp_path: Path, name: str) -> None:
    here, proof = repository(tmp_path / "here"), tmp_path / "proof"
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.com")
    (here / ".gitattributes").write_text(f"file merge={name}\n" if " " not in name else "")
    git.output(here, "config", "merge.default", name)
    git.output(here, "config", f"merge.{name}.driver", f"touch {proof}; exit 1")
    for text in ("text\n\n\n\nmore\n", "changed\n\n\n\nmore\n", "changed\n\n\n\nmore\nend\n"):
        (here / "file").write_text(text)
        git.output(here, "add", ".")
        subprocess.run(["git", "-C", here, *identity, "commit", "--quiet", "-m", "next"], check=True)
    middle = git.output(here, "rev-parse", "HEAD~1").strip()
    git.output(here, "revert", "--no-commit", middle)
    assert (here / "file").read_text() == "text\n\n\n\nmore\nend\n"
    assert not proof.exists()
    subprocess.run(["git", "-C", here, "reset", "--quiet", "--hard"], check=True)
    subprocess.run(["git", "-C", here, "revert", "--no-commit", middle], check=False, capture_output=True)
    assert proof.exists()  # git without these settings runs it


def a_program(folder: Path) -> tuple[Path, Path]:
    """A program, and the file that it creates."""
    program, proof = folder / "program", folder / "proof"
    program.write_text(f"#!/bin/sh\ntouch {proof}\nexit 1\n")
    program.chmod(0o755)
    return program, proof


LAZY_FETCHES = {
    "uploadpack": ("{here}", ("remote.evil.uploadpack",)),
    "vcs": ("{here}", ("remote.evil.vcs", "remote.evil.uploadpack")),
    "sshCommand": ("ssh://127.0.0.1:1/x", ("core.sshCommand",)),
    "gitProxy": ("git://127.0.0.1:1/x", ("core.gitProxy",)),
}


@pytest.mark.parametrize("variant", LAZY_FETCHES)
@pytest.mark.parametrize("scope", ["--local", "--worktree"])
def test_an_absent_object_of_a_partial_clone_is_not_fetched(tmp_path: Path, variant: str, scope: str) -> None:
    here = repository(tmp_path / "here")
    program, proof = a_program(tmp_path)
    url, names = LAZY_FETCHES[variant]
    settings = {"core.repositoryformatversion": "1", "extensions.partialClone": "evil", "remote.evil.promisor": "true"}
    settings |= {"extensions.worktreeConfig": "true", "remote.evil.url": url.format(here=here)}
    for name, value in (*settings.items(), *((name, str(program)) for name in names)):
        place = scope if name in names else "--local"
        subprocess.run(["git", "-C", here, "config", place, name, value], check=True)
    absent = "1" * 40
    assert git.run(here, "cat-file", "-e", f"{absent}^{{commit}}").returncode
    assert git.run(here, "rev-parse", "--verify", "--quiet", f"{absent}^{{commit}}").returncode
    assert not proof.exists()
    added = git.run(here, "worktree", "add", "--detach", str(tmp_path / "other"), absent, completing=True)
    assert added.returncode
    assert not proof.exists()
    if variant != "vcs":  # which git itself refuses
        subprocess.run(["git", "-C", here, "cat-file", "-e", absent], check=False, capture_output=True)
        assert proof.exists()  # git without these settings runs it


@pytest.mark.parametrize("name", ["credential.helper", "credential.http://127.0.0.1.helper", "core.askPass"])
def test_no_program_of_a_repository_is_asked_for_a_password(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the user's programs the helper is asked."""
    here, asked = repository(tmp_path / "here"), tmp_path / "asked"
    program, proof = a_program(tmp_path)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GIT_ASKPASS", raising=False)
    monkeypatch.delenv("SSH_ASKPASS", raising=False)
    git.output(here, "config", "--global", "credential.helper", f"!touch {asked}; true")
    git.output(here, "config", name, f"!{program}" if name.endswith("helper") else str(program))
    filled = {"stdin": "protocol=http\nhost=127.0.0.1\n\n"}
    assert git.run(here, "credential", "fill", **filled).returncode
    assert asked.exists()
    assert not proof.exists()
    subprocess.run(
        ["git", "-C", here, "credential", "fill"],
        input=filled["stdin"],
        env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
        text=True,
        check=False,
        capture_output=True,
    )
    assert proof.exists()  # git without these settings runs it


def test_a_setting_of_the_user_stays_where_a_repository_overrides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = repository(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    git.output(here, "config", "--global", "core.sshCommand", "ssh -F mine")
    git.output(here, "config", "core.sshCommand", "theirs")
    assert git.output(here, "config", "core.sshCommand") == "ssh -F mine\n"


def test_the_objects_that_a_partial_clone_lacks_are_fetched_for_a_worktree_only(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    git.output(origin, "config", "uploadpack.allowFilter", "true")
    clone = ["git", "clone", "--quiet", "--bare", "--filter=blob:none", f"file://{origin}", str(tmp_path / "partial")]
    subprocess.run(clone, check=True)
    partial = tmp_path / "partial"
    blob = git.output(origin, "rev-parse", "HEAD:file").strip()
    assert git.run(partial, "cat-file", "-e", blob).returncode
    added = git.run(partial, "worktree", "add", "--detach", str(tmp_path / "one"), "HEAD", completing=True)
    assert "transport 'file' not allowed" in added.stderr
    whole = Repository(partial)
    head = git.output(origin, "rev-parse", "HEAD").strip()
    assert whole.objects([f"{head}:file", f"{head}:gone"]) == {f"{head}:file": blob, f"{head}:gone": ""}
    assert whole.text(head, "gone") == ""
    with pytest.raises(InfrastructureError, match="is a partial clone without file of"):
        whole.text(head, "file")


@pytest.mark.parametrize("url", ["ext::sh -c 'touch {proof}'", "fd::0", "odd://host/x"])
def test_a_transport_that_runs_a_program_is_refused(tmp_path: Path, url: str) -> None:
    here, proof = repository(tmp_path / "here"), tmp_path / "proof"
    git.output(here, "config", "protocol.ext.allow", "always")
    done = git.run(here, "fetch", url.format(proof=proof))
    assert done.returncode
    assert "not allowed" in done.stderr
    assert not proof.exists()


@pytest.mark.parametrize(
    ("variable", "program", "wanted"),
    [
        ("", "ssh", "-o ConnectTimeout=30"),
        ("GIT_SSH", "own-ssh", ""),
        ("GIT_SSH_COMMAND", "own-ssh", ""),
    ],
)
def test_a_host_that_does_not_answer_is_not_waited_for_unless_the_user_has_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, program: str, wanted: str
) -> None:
    for name in ("GIT_SSH", "GIT_SSH_COMMAND"):
        monkeypatch.delenv(name, raising=False)
    here, proof, place = repository(tmp_path / "here"), tmp_path / "proof", tmp_path / "bin" / program
    place.parent.mkdir()
    place.write_text(f'#!/bin/sh\necho "{program} $@" >> {proof}\nexit 1\n')
    place.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place.parent}:{os.environ['PATH']}")
    if variable:
        monkeypatch.setenv(variable, str(place))
    assert git.run(here, "ls-remote", "host.invalid:30").returncode
    *_, last = proof.read_text().splitlines()
    assert last.startswith(program) and wanted in last and ("ConnectTimeout" in last) is bool(wanted)


def test_a_repository_of_this_machine_can_be_cloned(tmp_path: Path) -> None:
    here = repository(tmp_path / "here")
    git.output(tmp_path, "clone", "--quiet", "--mirror", "--", str(here), str(tmp_path / "there"))
    assert git.output(tmp_path / "there", "rev-parse", "HEAD") == git.output(here, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:hunter2@host/x.git", "https://host/x.git"),
        ("https://me:hun@ter2@host/x.git", "https://host/x.git"),
        ("https://hunter2@host/x.git", "https://host/x.git"),
        ("ssh://me:hunter2@host/x", "ssh://me@host/x"),
        ("ssh://git@host/x", "ssh://git@host/x"),
        ("git@host:group/x", "git@host:group/x"),
        ("https://host/a@b", "https://host/a@b"),
    ],
)
def test_a_url_is_shown_without_credentials(url: str, shown: str) -> None:
    assert git.without_credentials(url) == shown


def test_error_messages_of_git_contain_no_credentials(tmp_path: Path) -> None:
    here = repository(tmp_path / "here")
    with pytest.raises(InfrastructureError) as caught:
        git.output(here, "fetch", "https://me:hunter2@127.0.0.1:1/x.git")
    assert "127.0.0.1" in str(caught.value)
    assert "hunter2" not in str(caught.value)
