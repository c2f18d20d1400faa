from __future__ import annotations

from harness.core.outcomes import KnownFailure, Outcome
from harness.core.serialization import dumps, from_jsonable


def test_members_print_and_format_as_their_values() -> None:
    assert (str(Outcome.PASS), f"{Outcome.PASS:<6}|") == ("PASS", "PASS  |")


def test_members_are_written_as_text_and_read_back() -> None:
    assert dumps(KnownFailure.EXPIRED) == '"expired"'
    assert from_jsonable(KnownFailure, "expired") is KnownFailure.EXPIRED
    assert from_jsonable(KnownFailure, "") is KnownFailure.NONE and not KnownFailure.NONE
