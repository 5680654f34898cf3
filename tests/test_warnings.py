"""A warning that our own code causes fails the test in which it appears; another package's
is only shown."""

import warnings

import pytest


def warned_in(module):
    """What happens if a line of this module warns, or calls a function that blames its caller."""
    exec("warnings.warn('unusual', stacklevel=1)", {"__name__": module, "warnings": warnings})


@pytest.mark.parametrize(
    "module", ["lib", "lib.cost.step", "tests.two_nodes", "test_warnings", "own_processes"]
)
def test_a_warning_of_our_own_is_an_error(module):
    with pytest.raises(UserWarning, match="unusual"):
        warned_in(module)


@pytest.mark.parametrize("module", ["liberty", "torch.nn", "contest"])
def test_a_warning_of_another_package_is_none(module):
    with pytest.warns(UserWarning, match="unusual"):
        warned_in(module)
    with warnings.catch_warnings(record=True) as seen:
        warned_in(module)
    assert len(seen) == 1, "it is shown"
