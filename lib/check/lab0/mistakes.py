"""Where labs 1 to 6 still look for what is now in lib/check/symptoms.py. The last that is moved deletes this file."""

from lib.check.symptoms import ALL_SEND_FIRST, BUILT_IN, NOT_PAIRED, P2P, WHOSE_RANKS, failed, hung

__all__ = ["ALL_SEND_FIRST", "BUILT_IN", "NOT_PAIRED", "P2P", "WHOSE_RANKS", "failed", "hung"]
