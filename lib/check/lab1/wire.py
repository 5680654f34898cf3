"""The ops of torch and the collectives of lib by the names that the ledger gives them, for `may_call`."""

from lib import collectives
from lib.collectives import p2p
from lib.ledger.record import OPS


def _via(fn):
    return f"{fn.__module__.split('.')[-1]}.{fn.__name__}"


_FUNCTIONS = [getattr(collectives, name) for name in collectives.__all__]
COLLECTIVES = (*OPS.values(), *map(_via, [*_FUNCTIONS, p2p.send, p2p.recv, p2p.send_recv, p2p.exchange]))
