"""What all sections of a matrix or profile file share."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

SAFE_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"  # of files and in commands
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Unknown keys and silent conversions ("2" for 2, 1 for true) are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def one_of(*names: str) -> AfterValidator:
    def check(value: str) -> str:
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return value

    return AfterValidator(check)
