"""A process group of one rank in this process."""

from tests.runtime.conftest import world_of_one

__all__ = ["world_of_one"]
