"""A store of environments."""

from tests.infra.conftest import kept

__all__ = ["kept"]
