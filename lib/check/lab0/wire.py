"""Where labs 1 and 2 still look for what is now in lib/check/traffic.py."""

from lib.check.traffic import sent

__all__ = ["sent"]
