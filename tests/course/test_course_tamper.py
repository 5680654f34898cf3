"""Looking for what a notebook has changed says nothing into the notebook's own output."""

import warnings

import torch.distributed  # noqa: F401  has deprecated names, which warn when they are asked for their class

from lib.course import tamper


def test_looking_at_deprecated_names_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = {}
        assert (
            list(tamper._replaced(before, {})) == []
            and ("torch.distributed", "all_reduce") in before
        )
