from harness.upstreams.node_wrappers import printed_fields

LINE = (
    " [2026-08-22 10:11:12.123456] iteration        2/       3 | consumed samples:           12 | "
    "elapsed time per iteration (ms): 40.1 | learning rate: 1.000000E-03 | global batch size:     6 | "
    "lm loss: 4.870928E+00 | loss scale: 1.0 | grad norm: 1.205 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |"
)


def test_the_fields_that_are_compared_are_read_as_they_are_printed() -> None:
    assert printed_fields(LINE) == {
        "iteration": "2/3",
        "consumed samples": "12",
        "learning rate": "1.000000E-03",
        "global batch size": "6",
        "lm loss": "4.870928E+00",
        "loss scale": "1.0",
        "grad norm": "1.205",
        "number of skipped iterations": "0",
    }


def test_a_field_that_is_not_printed_is_left_out() -> None:
    assert "lm loss" not in printed_fields(LINE.replace("lm loss: 4.870928E+00 |", ""))


def test_other_lines_have_no_fields() -> None:
    assert printed_fields("(after 2 iterations) memory (GB) | grad norm: 1.2 |") == {}
    assert printed_fields(" validation loss at iteration 2 | lm loss value: 4.8 |") == {}
