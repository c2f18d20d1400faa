"""Checks of experts and their routers."""
