"""The options of `harness bisect`. Fast to import: the search itself is imported when it runs."""

from __future__ import annotations

import argparse

from harness.app.arguments import CLUSTER_JOBS, count


def add(bisect: argparse.ArgumentParser) -> None:
    searched = bisect.add_mutually_exclusive_group(required=True)
    searched.add_argument("--repo", metavar="PATH", help="clone (or URL) whose commits are searched")
    searched.add_argument("--package", metavar="NAME", help="package whose releases are searched")
    for end, shows in (("good", "every chosen cell passes"), ("bad", "a chosen cell fails")):
        bisect.add_argument(f"--{end}", required=True, metavar="REF", help=f"commit or release at which {shows}")
    bisect.add_argument(
        "--find",
        choices=("introduced", "fixed"),
        default="introduced",
        help="introduced: find the first bad point (default); fixed: the first good one",
    )
    bisect.add_argument("--paths", nargs="+", default=[], metavar="P", help="skip commits that touch none of these")
    bisect.add_argument("--first-parent", action="store_true", help="follow only the first parent of merges")
    bisect.add_argument("--pre", action="store_true", help="include pre-releases")
    bisect.add_argument(
        "--no-shrink",
        action="store_true",
        help="skip the smallest layout, the confirmation by revert, issue.md and reproducers",
    )
    bisect.add_argument(
        "--run", dest="setup", default="", metavar="COMMAND", help="command to run once in each commit's worktree"
    )
    bisect.add_argument(
        "--nested", default="", metavar="NAME", help="submodule or package to search next, if the found commit moved it"
    )
    bisect.add_argument("--fresh", action="store_true", help="ignore the verdicts of earlier bisections")
    bisect.add_argument(
        "--jobs",
        type=count,
        metavar="K",
        help=f"points to judge at once (default: 1 here, {CLUSTER_JOBS} on a cluster)",
    )


def run(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run the command; returns its exit code."""
    from harness.app.bisect.command import BisectRequest, bisect
    from harness.judge.bisect.result import Find

    return bisect(
        BisectRequest(
            matrix=arguments.matrix,
            good=arguments.good,
            bad=arguments.bad,
            repository=arguments.repo,
            package=arguments.package,
            only=arguments.only,
            find=Find(arguments.find),
            paths=arguments.paths,
            first_parent=arguments.first_parent,
            pre=arguments.pre,
            setup=arguments.setup,
            nested=arguments.nested,
            fresh=arguments.fresh,
            jobs=arguments.jobs,
            cluster=arguments.cluster,
            run_parent=arguments.run_dir,
            shrink=not arguments.no_shrink,
            command=command,
        )
    )
