"""Checks of models with adapters."""
