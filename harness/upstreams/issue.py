"""A known issue of upstream: where it shows, and in which releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ROWS_AS_ONE = "rows taken for one"  # in a message of the check aux_loss


@dataclass(frozen=True, kw_only=True)
class KnownIssue:
    name: str
    link: str
    check: str
    package: str = "megatron-core"  # the package of `releases`, a key of distributions()
    since: str  # first release that has it
    fixed: str = ""  # first release without it; empty: none is known
    data_path: str = ""  # empty: any
    stage: Literal["", "middle", "last"] = ""  # the stage of every rank in the finding; empty: any
    ranks: str = ""  # "tp > 0": none that reads the data; "middle tp 0": at least one that does, on a middle stage
    tp: Literal["", "1", "above 1"] = ""  # of the cell; empty: any
    cp: bool = False  # only with cp above 1
    # That the cell has; empty: any.
    feature: Literal["", "ep", "label_smoothing", "mla", "mtp", "quick_geglu", "rotary_interleaved"] = ""
    rows: bool = False  # only with several rows in a micro-batch
    padded: bool = False  # only in packed rows with real offsets of padded documents
    per_token: bool | None = None  # calculate_per_token_loss; None: either
    ratio: Literal["", "1/cp", "1/(cp tp)", "1/rows"] = ""  # the factor that the number is wrong by; empty: any
    fields: tuple[str, ...] = ()  # of packed params; empty: any
    part: str = ""  # what a timing leg timed, by the finding; empty: any
    aux_loss: str = ""  # of the cell's model; empty: any
    layer: str = ""  # letter of a layer that the model's pattern has; empty: any
    message_contains: str = ""  # text of upstream, or a constant that the check's message shares

    @property
    def text(self) -> str:
        """E.g. "Megatron-LM issue 4092, fixed in megatron-core 0.18.0 (https://...)"."""
        release = f"fixed in {self.package} {self.fixed}" if self.fixed else "no release with a fix is known"
        return f"{self.name}, {release} ({self.link})"
