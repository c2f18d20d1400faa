"""A framework that a plug-in tests: its loss."""

__version__ = "0.3"
