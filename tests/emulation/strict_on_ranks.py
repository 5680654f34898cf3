"""For ranks that `lib.launch` starts: every rank lives by the rules from when it has joined until
its function returns.

    forkserver imports this  ->  backend.join, then install()
                             ->  fn(*args)
                             ->  leave(), then ledger.uninstall

`lib.launch.server.PRELOAD` names this module (see strict_plugin.py); the ranks are forked from the
server that imported it.
"""

from lib import backend, ledger
from tests.emulation import strict, strict_works

strict_works.load()
_join, _uninstall = backend.join, ledger.uninstall


def join(*args, **kwargs):
    _join(*args, **kwargs)
    strict.install()


def uninstall():
    strict.leave()
    _uninstall()


backend.join, ledger.uninstall = join, uninstall
