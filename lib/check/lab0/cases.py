"""Where labs 1 to 6 still look for what is now in lib/check/cases.py. The last one that is moved deletes this file."""

from lib.check.cases import called, form_of, groups_of, in_step, is_a, name_of, number, seen

__all__ = ["called", "form_of", "groups_of", "in_step", "is_a", "name_of", "number", "seen"]
