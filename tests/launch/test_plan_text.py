from __future__ import annotations

import json

from harness.campaign.plan_text import plan_json, plan_text
from tests.matrix.helpers import expand_axes


def test_the_text_shows_cells_rejections_exclusions_and_cost() -> None:
    made = expand_axes(
        {"pp": [1, 2, 3, 8], "packing": ["unpacked", "sft"], "vpp": 1},
        constraints=["pp < 8"],
        xfail=[{"pattern": "*-sft", "reason": "known", "expires": "2030-01-01"}],
        may_reject=[{"pattern": "*-sft", "reason": "too old"}],
    )
    text = plan_text(made, cores=2)
    lines = text.splitlines()
    assert lines[0] == "4 cells to run, 2 rejected, 2 excluded"
    assert lines[3].split() == ["id", "tp", "pp", "cp", "packing", "ranks"]  # vpp does not vary
    control = next(line for line in lines if "tp1-pp1-cp1-unpacked" in line)
    assert control.split()[1:] == ["1", "1", "1", "unpacked", "1", "control"]
    assert "known failure until 2030-01-01: known; may be rejected: too old" in text
    assert "layout.layers-by-pp: model.layers 4 is not divisible by pp 3 x vpp 1 = 3: 4 = 1 * 3 + 1" in text
    assert "source: Megatron-LM TransformerConfig" in text
    assert "2 combinations by pp < 8" in text
    assert "Total: 4 cells, 6 rank processes (largest cell 2), 18 rank-steps" in text
    assert "a rough estimate from" in lines[-1]


def test_long_lists_are_cut_at_fifty_rows_and_say_so() -> None:
    made = expand_axes(
        {"train.seed": list(range(60)), "pp": [1, 3], "packing": "unpacked"},
    )
    text = plan_text(made)
    assert text.count("\n  tp1-pp1-cp1-unpacked-") == 50
    assert text.count("\n  tp1-pp3-cp1-unpacked-") == 50
    assert text.count("  ... and 10 more (--all shows them)") == 2
    everything = plan_text(made, all_rows=True)
    assert everything.count("\n  tp1-pp") == 120
    assert "more (--all" not in everything


def test_the_json_holds_everything() -> None:
    made = expand_axes({"pp": [1, 2, 3, 8], "packing": ["sft"]}, constraints=["pp < 8"])
    values = json.loads(plan_json(made, cores=2))
    assert [(cell["ranks"], cell["role"]) for cell in values["cells"]] == [(1, "control"), (1, "cell"), (2, "cell")]
    assert values["cells"][1]["control"] == values["cells"][0]["id"]
    assert values["rejected"][0]["rule"] == "layout.layers-by-pp"
    assert values["rejected"][0]["axes"]["pp"] == 3
    assert values["excluded"] == {"pp < 8": 1}
    assert sorted(values["allocations"][0]["cells"]) == sorted(cell["id"] for cell in values["cells"])
    assert values["cost"]["rank_steps"] == 3 * (1 + 1 + 2)


def test_a_narrow_table_has_the_axes_that_fit_and_names_the_others() -> None:
    made = expand_axes({"pp": [1, 2], "packing": "unpacked", "micro_batch_size": [1, 2], "dp": [1, 2]})
    wide, narrow = (plan_text(made, width=width).splitlines()[3:] for width in (200, 80))
    assert wide[0].split() == ["id", "tp", "pp", "cp", "packing", "micro_batch_size", "dp", "ranks"]
    assert narrow[0].split() == ["id", "tp", "pp", "cp", "packing", "ranks"]
    assert "  no room for: micro_batch_size, dp" in narrow
    assert [line for line in narrow[: narrow.index("")] if len(line) > 80] == []
    assert narrow[1].split()[-2:] == wide[1].split()[-2:]  # ranks and note
