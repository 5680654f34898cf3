"""Strict c10d: gloo below, NCCL's rules above it, so that what would only fail on GPUs fails here,
by name.

    dist.*, lib.p2p, DDP's reducer, FSDP2, DTensor
                      |
           torch.ops.c10d.<op>       BackendSelect: the ledger, as on any rank
                      |              CPU: we stand here, and put the op into its group's stream
             stream of the group     a thread (strict_stream.py), in the order of posting
                      |
             gloo's own kernel

1. A synchronous collective, and each op between `_start_coalescing` and `_end_coalescing`, gives no
   Work.
2. What is posted to a group is executed in that order; an unbatched message blocks what comes after
   it.
3. `wait()` never blocks the host. The next op that touches the tensor does, and `.item()` and the
   like.
4. Until `wait()` nobody may read what is being filled, nor write what is being read
   (strict_touch.py).
5. Every Work is waited for before the rank's function returns.
6. Tensors are contiguous and of a dtype that NCCL has; no receive from anyone, no bitwise reduction
   (strict_ops.py).
7. The first message of two ranks, in each direction, connects them: the host waits until the other
   has posted its part. Two ranks that have both directions in one connection must post them alike
   (strict_contact.py).
8. Backward, its hooks and DDP's reducer are on a thread without Python frames (strict_backward.py).

With STRICT_C10D_SPINS=1 a host that waits keeps its processor busy, as CUDA's does; else it sleeps.

`torch.cuda.current_stream(...).record_event()` gives an event over all that this thread's stream
waits for.

Rules 4 and 5 ask for more than NCCL, where a later Work's wait covers the earlier ones of its
group. And what this cannot see: the order of kernels on several streams of a device, memory that
the allocator gives to another stream, kernels that cannot run at the same time, communicators left
behind or made in another order, what a future's wait in C++ covers (to take a future counts as to
wait for it, and it ends with the op, not when it is posted), a size or dtype that collectives do
not agree on, versions of NCCL, and anything about time. Tensors stay on the CPU: see tags.py.
"""

import inspect
import sys
import threading
import types
import warnings

import torch
import torch.distributed as dist

from lib import backend, ledger
from lib.ledger import record
from lib.ledger.source import position
from tests.emulation import (
    strict_background,
    strict_backward,
    strict_contact,
    strict_events,
    strict_ops,
    strict_stream,
    strict_touch,
    strict_works,
)
from tests.emulation.strict_ops import Post
from tests.emulation.strict_stream import Item, Stream
from tests.emulation.strict_touch import BrokenRule, Sentry, Table

# the file of functions that are nobody's, for whoever looks at the stack
UNSEEN = "<frozen strict>"
_rules = None  # those installed in this process


def install() -> None:
    """From now on this process lives by the rules. The default group must exist."""
    global _rules
    if _rules is None:
        strict_works.load()
        for module in (
            sys.modules[__name__],
            strict_background,
            strict_contact,
            strict_events,
            strict_ops,
            strict_stream,
            strict_touch,
        ):
            _unseen(module)
        _unseen(strict_backward, strict_backward.FILE)
        recorder, is_programs = record._recorder, record.is_programs
        record.is_programs = lambda frame: is_programs(_above_the_sentry(frame))
        if recorder is not None:
            ledger.uninstall()
        _rules = Rules()
        if recorder is not None:
            ledger.install(recorder.log)  # again, above the rules


def leave() -> None:
    """The rank's function has ended: raises BrokenRule for a Work never waited for;
    waits for the rest."""
    if _rules is not None:
        _rules.leave()


class Rules:
    """The override of c10d's CPU kernels, and all that is under way on this rank."""

    def __init__(self):
        self.table, self.streams, self.here = Table(), {}, threading.local()
        self.lock = threading.Lock()
        self.library = torch.library.Library("c10d", "IMPL")
        with warnings.catch_warnings():  # torch warns, once, of kernels that are replaced
            warnings.simplefilter("ignore")
            for name in strict_ops.ROLES:
                op = getattr(torch.ops.c10d, name, None)
                if op is not None:
                    self.library.impl(name, self._kernel(name, op.default), "CPU")
            for name in ("recv_any_source_", "monitored_barrier_"):
                self.library.impl(name, _refusal(name), "CPU")
        self._replace_methods()
        strict_touch.watch_readers(self.table)
        strict_background.watch(self.table)
        strict_backward.install()
        self.contacts = strict_contact.Contacts()
        self._watch_threads()

    def _kernel(self, name, op):
        arguments = [a.name for a in op._schema.arguments]
        defaults = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}
        gives_tensors = len(op._schema.returns) == 2

        def posted(*args):
            given = defaults | dict(zip(arguments, args, strict=False))
            group = dist.ProcessGroup.unbox(given["process_group"])
            work = self._post(Post(name, op, arguments, given, group, _site()), group)
            return (args[0], work) if gives_tensors else work

        return posted

    def _post(self, post, group):
        """Put `post` into the group's stream, or the batch that is being made;
        returns its Work, boxed."""
        batch = getattr(self.here, "batch", None)
        batched = batch is not None and batch[0] == group.group_name
        item = (
            batch[1] if batched else Item([], synchronous=post.given.get("async_op", True) is False)
        )
        for tensor in post.reads:
            self.table.touch(tensor, False, post.title())
        for tensor in post.fills:
            self.table.touch(tensor, True, post.title())
        post.begin()
        item.posts.append(post)
        self.table.add(item, post)
        if batched:
            return torch.ops.strict.no_work()
        self._submit(item, group)
        if item.synchronous and post.name == "barrier":
            strict_stream.on_the_host(item.done)  # NCCL's barrier blocks it
        return torch.ops.strict.no_work() if item.synchronous else item.work

    def _submit(self, item, group):
        self.contacts.meet(item.posts, group)
        item.make_work()
        with self.lock:
            item.after = self.ahead()
            self.table.items[item.number] = item
            stream = self.streams.get(group.group_name)
            if stream is None:
                stream = self.streams[group.group_name] = Stream(
                    group.group_name, self.table.settle
                )
            stream.items.put(item)
        self.tidy()

    def ahead(self):
        """What this thread's stream waits for now: all that was waited for here and has not
        been executed."""
        here = strict_backward.thread()
        under_way = [
            i for i in list(self.table.items.values()) if i.thread == here and not i.done.is_set()
        ]
        return [item for item in under_way if item.was_waited_for()]

    def tidy(self):
        """Give back what has been executed and waited for."""
        for item in list(self.table.items.values()):
            if item.done.is_set() and item.was_waited_for():
                self.table.settle(item)

    def leave(self):
        lost = [item for item in list(self.table.items.values()) if not item.was_waited_for()]
        if lost:
            post = lost[0].posts[0]
            more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
            raise BrokenRule(f"never waited for: {post.says()}{more}")
        for item in list(self.table.items.values()):
            self.table.settle(item)

    def _replace_methods(self):
        """Of Work, of ProcessGroup, and of torch.cuda: what the dispatcher does not see."""
        table, here = self.table, self.here
        wait, get_future = dist.Work.wait, dist.Work.get_future

        def wait_and_settle(work, *args, **kwargs):
            item = table.items.get(torch.ops.strict.number(work.boxed()))
            if item is not None:
                item.thread = strict_backward.thread()
            out = wait(work, *args, **kwargs)
            if item is not None and item.done.is_set():
                table.settle(item)
            return out

        def take_future(work):
            boxed = work.boxed()
            only_looks = sys._getframe(1).f_globals.get("__name__", "").startswith("lib.ledger")
            only_looks = (
                only_looks
                and torch.ops.strict.number(boxed) >= 0
                and not torch.ops.strict.waited(boxed)
            )
            future = get_future(work)
            if only_looks:
                torch.ops.strict.give_back(boxed)
            return future

        def start_coalescing(group, device=None):
            here.batch = (group.group_name, Item([]))

        def end_coalescing(group, device=None):
            (_, item), here.batch = here.batch, None
            if not item.posts:
                return None
            self._submit(item, group)
            return dist.Work.unbox(item.work)

        dist.Work.wait, dist.Work.get_future = wait_and_settle, take_future
        dist.ProcessGroup._start_coalescing, dist.ProcessGroup._end_coalescing = (
            start_coalescing,
            end_coalescing,
        )
        dist.distributed_c10d.ProcessGroupGloo.supports_coalescing = True
        backend.synchronize_stream = lambda: strict_events.CurrentStream(self).synchronize()
        if not torch.cuda.is_available():
            torch.cuda.current_stream = lambda device=None: strict_events.CurrentStream(self)
            torch.cuda.Event = lambda *args, **kwargs: strict_events.Event(self)

    def _watch_threads(self):
        """This thread and every later one shows its ops; a stream's own does not."""
        Sentry(self.table).__enter__()
        start = threading.Thread.start

        def start_watched(thread):
            if not isinstance(
                thread, (Stream, strict_stream.Keeper)
            ) and not thread.name.startswith("lib.ledger."):
                run = thread.run

                def watched():
                    with Sentry(self.table):
                        run()

                thread.run = watched
            start(thread)

        threading.Thread.start = start_watched


def _refusal(name):
    def refused(*args):
        raise BrokenRule(f"NCCL has no {name.strip('_')} ({_site()})")

    return refused


def _site():
    """The user's line, as the ledger would name it."""
    site = getattr(record._overrides, "site", None) or ledger.call_site()
    return position(*site[0])


def _above_the_sentry(frame):
    """Where an op was called, for what sees it below the mode that watches it here
    (strict_touch.Sentry)."""
    outer, passed = frame, False
    while outer is not None and outer.f_code.co_filename.endswith(
        ("_ops.py", "_compile.py", "eval_frame.py", UNSEEN)
    ):
        outer, passed = outer.f_back, passed or outer.f_code.co_filename == UNSEEN
    return outer if passed else frame


def _unseen(module, file=UNSEEN):
    """Errors, the ledger and the watch name the user's lines: frames of `module` are to
    count as none of his."""

    def renamed(code):
        inner = (
            renamed(const) if isinstance(const, types.CodeType) else const
            for const in code.co_consts
        )
        return code.replace(co_filename=file, co_consts=tuple(inner))

    for thing in vars(module).values():
        if getattr(thing, "__module__", None) == module.__name__:
            for part in vars(thing).values() if isinstance(thing, type) else [thing]:
                part = inspect.unwrap(part)
                if isinstance(part, types.FunctionType):
                    part.__code__ = renamed(part.__code__)
