from __future__ import annotations

import pytest

from harness.judge.checks import outputs
from tests.judge.parts import with_predictions


@pytest.mark.parametrize("layout", [{}, {"tp": 2}, {"pp": 2}, {"dp": 2}], ids=str)
def test_what_the_plan_and_the_reference_say_gives_no_finding(layout: dict[str, int]) -> None:
    assert outputs.mtp_loss(with_predictions(depths=2, **layout)) == []


def test_a_token_that_counts_beyond_the_end_of_its_document_is_named_with_its_depth() -> None:
    evidence = with_predictions("reference", depths=2, pp=2)
    seen = next(seen for seen in evidence.records[1].mtp if seen.depth == 2)
    document = min(seen.documents)
    seen.documents[document].tokens += 1
    (finding,) = outputs.mtp_loss(evidence)
    assert (finding.where["stage"], finding.where["depth"], finding.where["document"]) == (1, 2, document)
    assert finding.fault_class == "C multi-token prediction across documents"
