"""Plug-in of pytest: `pytest --harness matrix.yaml` has an item per cell. docs/api.md describes it.

pytest imports this module in every session of an environment that has the harness, so it loads nothing more without
the option.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.campaign.options import OPTIONS

_OPTIONS = {name: option for name, option in OPTIONS.items() if option.in_pytest}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("harness", "harness: cells of a matrix as tests")
    group.addoption("--harness", action="append", default=[], metavar="MATRIX", help="run this matrix (repeatable)")
    for name, option in _OPTIONS.items():
        text = f"as {option.flag} of `harness run`: {option.help}"
        group.addoption(f"--harness{option.flag[1:]}", dest=f"harness_{name}", **(option.keywords | {"help": text}))


def pytest_configure(config: pytest.Config) -> None:
    """With --harness: the matrices are collected, and nothing else unless the command line names it."""
    names = config.getoption("harness")
    if not names:
        return
    if config.getoption("numprocesses", None) or config.getoption("tx", None):
        hint = "leave out -n: the harness itself runs cells side by side"
        raise pytest.UsageError(f"--harness cannot be used with workers of pytest-xdist; {hint}")
    from harness.infra.files import matrix_path

    files = [matrix_path(name).resolve() for name in names]
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args.clear()
    for name, file in zip(names, files):
        if not file.is_file():
            raise pytest.UsageError(f"--harness {name}: no such file")
        config.args.append(str(file))
    config.pluginmanager.register(_Cells(files), "harness-cells")


class _Cells:
    """The hooks of a session with --harness."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files
        self._matrices: list[_Matrix] = []

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> _Matrix | None:
        if file_path.resolve() not in self._files:
            return None
        matrix = _Matrix.from_parent(parent, path=file_path)
        self._matrices.append(matrix)
        return matrix

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Time each cell by itself: the first item's setup is the whole run."""
        report = yield
        if isinstance(item, _Cell) and call.when in ("setup", "call"):
            report.duration = item.seconds if call.when == "call" or report.failed else 0.0
            if call.when == "call" and report.passed and item.unexpected:
                report.wasxfail = item.unexpected
            if isinstance(report.longrepr, tuple):  # of a skip: where the matrix names the cell
                path, line, _ = item.reportinfo()
                report.longrepr = str(path), (line or 0) + 1, report.longrepr[2]
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run that proves nothing must not pass, although each of its items may have."""
        undecided = any(one.report and one.report.verdict != "pass" for one in self._matrices)
        if undecided and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for matrix in self._matrices:
            if matrix.report is not None:
                file = harness.run_folder(matrix.report) / "report.html"
                for line in (*matrix.report.problems, f"report: {file}"):
                    terminalreporter.write_line(f"{matrix.name}: {line}")


class _Matrix(pytest.File):
    """A matrix file. Its cells run when the first of their items does, all of the selected ones at once."""

    report: harness.Report | None = None
    _error: harness.HarnessError | None = None
    _runnable = 0  # cells that no rule rejects

    def collect(self) -> Iterator[_Cell]:
        options = self._options()
        try:
            found = harness.expand(self.path, settings=options["settings"], cluster=options["cluster"])
        except harness.InputError as error:
            raise self.CollectError("\n".join(str(problem) for problem in error.problems)) from error
        self._runnable = len(found.cells)
        cells: list[harness.PlannedCell | harness.RejectedCell] = [*found.cells, *found.rejected]
        for cell in cells:
            yield _Cell.from_parent(self, name=cell.id, cell=cell)

    def judged(self, name: str) -> harness.ReportCell | harness.ReportRejected:
        """Return the cell as the report has it; the first call runs the matrix. HarnessError if that could not
        be done.
        """
        if self.report is None and self._error is None:
            self._run()
        if self._error is not None:
            raise self._error
        assert self.report is not None
        cells: list[harness.ReportCell | harness.ReportRejected] = [*self.report.cells, *self.report.rejected]
        return next(cell for cell in cells if cell.id == name)

    def _run(self) -> None:
        """Run the selected cells; what they are compared with runs too."""
        from harness.core.text import counted
        from harness.infra.screen import relative_path

        items = [item for item in self.session.items if isinstance(item, _Cell) and item.parent is self]
        selected = [item.name for item in items if not item.rejections]
        every = len(selected) == self._runnable
        self._note(f"running {counted(len(selected), 'cell')}")
        try:
            self.report = harness.run(
                relative_path(self.path),
                only=() if every else selected,
                show=self.config.getoption("capture") == "no",
                **self._options(),
            )
        except harness.InterruptedRun as error:
            pytest.exit(f"harness: {error}", returncode=pytest.ExitCode.INTERRUPTED)
        except harness.HarnessError as error:
            self._error = error

    def _options(self) -> dict[str, Any]:
        """Return the keywords of `harness.run`."""
        return {name: self.config.getoption(f"harness_{name}") for name in _OPTIONS}

    def _note(self, text: str) -> None:
        """A line on the terminal, which pytest does not capture."""
        reporter: pytest.TerminalReporter | None = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(f"{self.name}: {text}")


class _Cell(pytest.Item):
    """A cell, or a combination that a rule rejects."""

    def __init__(self, *, cell: harness.PlannedCell | harness.RejectedCell, **more: Any) -> None:
        super().__init__(**more)
        self.rejections = getattr(cell, "rejections", ())
        self._line = cell.line
        self.judged: harness.ReportCell | harness.ReportRejected | None = None

    @property
    def seconds(self) -> float:
        """Wall time of the cell."""
        return self.judged.timing.get("wall_s", 0.0) if isinstance(self.judged, harness.ReportCell) else 0.0

    @property
    def unexpected(self) -> str:
        """Why a cell that passes was expected to fail; empty if it was not."""
        cell = self.judged
        return cell.reason if isinstance(cell, harness.ReportCell) and cell.outcome is harness.Outcome.XPASS else ""

    def setup(self) -> None:
        """The run, if it has not been. A cell that could not be decided is an error of its setup."""
        matrix = self.parent
        assert isinstance(matrix, _Matrix)
        if self.rejections:
            pytest.skip("; ".join(f"rejected by {one.rule}: {one.reason}" for one in self.rejections))
        try:
            self.judged = cell = matrix.judged(self.name)
        except harness.HarnessError as error:
            pytest.fail(str(error), pytrace=False)
        if isinstance(cell, harness.ReportRejected):
            pytest.skip(f"rejected by {cell.rule}: {cell.reason}")
        self.user_properties.append(("outcome", cell.outcome.value))
        if cell.outcome is harness.Outcome.NOT_RUN:
            pytest.skip(cell.reason)
        if cell.outcome is harness.Outcome.ERROR:
            pytest.fail(_text(cell), pytrace=False)

    def runtest(self) -> None:
        cell = self.judged
        assert isinstance(cell, harness.ReportCell)
        if cell.outcome is harness.Outcome.FAIL:
            pytest.fail(_text(cell), pytrace=False)
        if cell.outcome is harness.Outcome.XFAIL:
            pytest.xfail(cell.reason)
        if cell.outcome is harness.Outcome.FLAKY:
            self.add_report_section("call", "stdout", f"flaky: passed on attempt {cell.attempts}")

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None if self._line is None else self._line - 1, self.name


def _text(cell: harness.ReportCell) -> str:
    from harness.infra.screen import shown
    from harness.reporting.render_junit import details

    return shown(details(cell))
