"""Leads to lib.check.pure."""

from lib.check.pure import noting_calls  # noqa: F401
