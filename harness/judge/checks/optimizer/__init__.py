"""Checks of what the optimizer makes of the gradients."""
