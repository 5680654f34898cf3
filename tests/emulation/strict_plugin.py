"""pytest -p tests.emulation.strict_plugin: every rank that the tests launch lives by NCCL's rules.

STRICT_C10D_THRESHOLD says how many bytes a send may have that ends at once: "0" or "inf".
"""

import pytest

from tests.emulation import strict_works
from tests.emulation.strict_excluded import EXCLUDED, EXCLUDED_WITH_BUFFERS
from tests.emulation.strict_stream import threshold


def pytest_configure(config):
    if strict_works.missing() is None:
        strict_works.path()  # compiled before the first rank needs it
        from lib import launch
        from lib.launch import server

        server.PRELOAD = [*server.PRELOAD, "tests.emulation.strict_on_ranks"]
        for start in (launch.run, launch.capture):  # the rules are installed as a rank joins
            start.__kwdefaults__["fresh"] = True


def pytest_report_header(config):
    return f"ranks live by NCCL's rules; a send of less than {threshold():g} bytes ends at once"


def pytest_collection_modifyitems(config, items):
    reason = strict_works.missing()
    excluded = EXCLUDED | (EXCLUDED_WITH_BUFFERS if threshold() else {})
    for item in items:
        why = reason or next(
            (why for name, why in excluded.items() if item.nodeid.startswith(name)), None
        )
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=why))
