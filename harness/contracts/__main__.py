"""Runs one suite in the environment of a stack: python -m harness.contracts SUITE REPORT [-k EXPRESSION].

Writes JUnit XML to REPORT, and beside it a record of the modules that were imported. A stack without anything to run
gets no REPORT, and the reason is printed.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from harness.core.cell.layout import Coordinates
from harness.core.run.records import RankRecord
from harness.core.serialization import dumps
from harness.runtime.load import load

# No cache in the checkout; and `harness`, the harness's own plug-in of pytest, is not among what a stack gets.
_OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:harness")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("suite", choices=("refusals", "upstream_tests"))
    parser.add_argument("report", type=Path)
    parser.add_argument("-k", dest="expression", default="")
    parser.add_argument("--pytest", default="", help="where pytest is, if the stack has none")
    given = parser.parse_args()
    if given.pytest and find_spec("pytest") is None:
        sys.path.append(given.pytest)  # last, so that it hides none of the stack's packages
    import pytest

    from harness.contracts import upstream_tests

    root = upstream_tests.checkout()
    if given.suite == "upstream_tests" and root is None:
        print("no checkout of this stack has upstream's unit tests of packing")
        return 0
    load()
    from harness.probe.built import import_proof, other_modules

    options = [*_OPTIONS, f"--junitxml={given.report}", f"--basetemp={given.report.with_suffix('.tmp')}"]
    options += ["-k", given.expression] if given.expression else []
    if given.suite == "refusals":
        file = Path(__file__).with_name("test_refusals.py")
        code = pytest.main([str(file), f"--rootdir={file.parent}", "-c", os.devnull, *options])
    else:
        assert root is not None
        os.chdir(root)
        sys.path.insert(0, str(root))  # they import each other as tests.unit_tests
        files = [one.file for one in upstream_tests.SELECTED if (root / one.file).is_file()]
        code = pytest.main([*files, *options], plugins=[upstream_tests])
    record = RankRecord(cell=given.suite, rank=0, place=Coordinates(tp=0, cp=0, dp=0, pp=0))
    record.imports, record.modules = import_proof(), other_modules()
    record.ended = "completed"
    given.report.with_suffix(".json").write_text(dumps(record), encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
