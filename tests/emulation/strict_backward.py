"""backward() runs on a thread that C++ began, as autograd's of a GPU: it calls hooks, and DDP's
reducer, from there.

    main thread        loss.backward() ............ waits ............ returns, or raises that error
    autograd's thread      [ a hook: no Python frames but its own       DDP's reducer: none at all ]

`_thread.start_new_thread` begins a thread in C, and all that it calls here is C, too:
`list.extend`, `map`, `operator.call` and the engine. So no Python frame is below that of a hook,
and `threading` does not know the thread. It gets what torch gives it on a GPU: modes, and hooks for
what graphs save. A backward inside a backward stays there.
"""

import _thread
import functools
import operator
import sys
import threading

import torch
from torch.autograd import Variable, graph
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import _python_dispatch as dispatch

FILE = graph.__file__  # whose frame the main thread waits in
_here = threading.local()  # stands_for: the thread that waits for this one


def thread() -> int:
    """Whose stream this thread's ops are on: autograd's thread uses that of the thread that
    called backward."""
    return getattr(_here, "stands_for", None) or threading.get_ident()


def install() -> None:
    """From now on every backward of this process runs so."""
    if not isinstance(Variable._execution_engine, Elsewhere):
        Variable._execution_engine = Elsewhere(Variable._execution_engine)
        sys.unraisablehook = functools.partial(_ended_badly, sys.unraisablehook)


class Elsewhere:
    """torch's engine, each of whose calls has a thread of its own."""

    def __init__(self, engine):
        self.engine = engine
        self.queue_callback, self.is_checkpoint_valid = (
            engine.queue_callback,
            engine.is_checkpoint_valid,
        )

    def run_backward(self, *args, **kwargs):
        run = functools.partial(self.engine.run_backward, *args, **kwargs)
        if thread() != threading.get_ident():
            return run()
        calls = Calls(threading.get_ident())
        _thread.start_new_thread(calls.extend, (map(operator.call, [calls.begin, run, calls.end]),))
        calls.ended.acquire()
        if calls.error is not None:
            raise calls.error
        return calls[1]


class Calls(list):
    """What the calls of one thread have returned; error: what the last of them raised."""

    def __init__(self, caller):
        super().__init__()
        self.caller, self.error, self.ended = caller, None, _thread.allocate_lock()
        self.ended.acquire()
        self.modes = _get_current_function_mode_stack(), dispatch._get_current_dispatch_mode_stack()
        self.hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)

    def begin(self):
        _here.stands_for = self.caller
        for push, modes in zip((_push_mode, dispatch._push_mode), self.modes, strict=True):
            for mode in modes:
                push(mode)
        if self.hooks is not None:
            torch._C._autograd._push_saved_tensors_default_hooks(*self.hooks)

    def end(self):
        if self.hooks is not None:
            torch._C._autograd._pop_saved_tensors_default_hooks()
        for pop, modes in zip((_pop_mode, dispatch._pop_mode), self.modes, strict=True):
            for _ in modes:
                pop()
        del _here.stands_for
        self.ended.release()


def _ended_badly(plain, unraisable):
    """Python tells an error that ends a thread here: it is raised where backward was called."""
    calls = getattr(unraisable.object, "__self__", None)
    if not isinstance(calls, Calls):
        return plain(unraisable)
    calls.error = unraisable.exc_value
    calls.end()
