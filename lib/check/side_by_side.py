"""Runs one script with lib's own function and with the answer, and compares what the two show.

    def script(make, case, group, show):         make: lib's own, then the answer; without ranks
                                                 script(make, case, show)
        x = show.give("x", tensor, learns=True)  an input; its gradient is shown
        y = show.run(make, x, group)             calls the answer; what it sends is recorded
        show("y", y)                             a number, a string, a tensor, {name: tensor}, ...
        show("kept", n, at_most=True)            a value no larger than lib's is right, too
        show("kept", n, beside="rank 0: ...")    a line that the verdict adds if this is wrong
        show("order", "2F0 stands before 1F0")   a property: "" if it holds, else what violates it
        show.said(FORM, {"order": "2F0 ..."})    all properties in FORM; returns whether one fails
        show.returned(y, good, "a dict", "dict") the form of a result; returns `good`
        yield                                    a second script may run here (probe "two at once")
        show.backward(y)                         from a random dy; shows the inputs' gradients

    MEASURE = SideBySide(script, lib's own, cases)
    claims=claims(MEASURE, ("the sum", 8, "2, 3, 4 ranks", "y"), ...)      (shown.py)

What lib's own shows is right, up to rounding, because the tests of lib's packages compare it with a
single-process baseline. Therefore no expected value has to be written by hand. The probes
(probes.py) examine every script, too, without a line in the exercise's file.
"""

import contextlib
import functools
import inspect
import itertools
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import torch.distributed as dist

from lib import backend, collectives, ledger
from lib.backend.torch_private import tree_map
from lib.backend.torch_private import without_dispatch_modes as unseen
from lib.check import probes, whose
from lib.check.cases import Case, called, groups_of, in_step
from lib.check.comm import Recorder
from lib.check.earlier import functions_of
from lib.check.exercise import Exercise, Problem
from lib.check.explain import described
from lib.check.failure import of_error
from lib.check.guard import is_students, noting_calls
from lib.check.overlap import Gates, started_threads
from lib.check.shown import ERROR, RETURNED, claims, compared_with, differences, traced
from lib.check.tensors import draw
from lib.check.wire import Wire

PLAIN = (int, float, str, torch.Tensor, type(None))
EXPECTED_ERRORS = (ValueError, TypeError, RuntimeError, LookupError, OSError)


def by_key(value):
    """`value` as {key: plain value}, whatever an answer has returned."""
    if not isinstance(value, PLAIN):
        with contextlib.suppress(TypeError, ValueError):
            pairs = dict(value)
            if all(isinstance(key, str) for key in pairs):
                return pairs
    return {"": value}


def copy(value):
    """A tensor's copy on the CPU; anything else as it is."""
    return value.detach().cpu().clone() if torch.is_tensor(value) else value


@contextlib.contextmanager
def unwatched():
    """Inside the block, no dispatch mode sees torch's ops, and no trace function sees calls. This
    is for the check's own code, which both would only slow down."""
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        with unseen():
            yield
    finally:
        sys.settrace(trace)


class Here(Case):
    """A case without ranks, identified by its name alone."""

    name = property(lambda self: self.what)


def here(*names: str) -> tuple[Here, ...]:
    return tuple(Here((0,), what=name) for name in names)


class Show:
    """Records what one run of a script shows, in order. `shown` is {(name, n): Value}, with n = 1
    when a name is shown for the first time.

    draws: the seed of the gradients with which `backward` begins.
    judged: data for a judge of the exercise's own, or None.
    lib: the reference's Show, while the answer's script runs.
    returned_none: for each call, whether it returned None.
    stopped: the script ended early, so what it would have shown after that is not missing.
    """

    def __init__(self, case, call, variant="", draws=0):
        self.case, self.call, self.variant, self.draws, self.part = case, call, variant, draws, ""
        self.shown, self.times, self.given, self.counts, self.held = {}, Counter(), {}, {}, []
        self.returned_none = []
        self.made, self.judged, self.lib, self.stopped = probes.Made(), None, None, False

    def __call__(self, name, value, at_most=False, tolerance=None, beside=""):
        """Show a value: a number, a string, a tensor, None, or several of them, as {key: value} or
        as (key, value) pairs."""
        pairs = by_key(value)  # watched, because this may run code of the answer's
        with unwatched():
            self._note(name, pairs, at_most, tolerance, beside)

    def _note(self, name, pairs, at_most=False, tolerance=None, beside="", names=()):
        copied = {key: copy(one) for key, one in pairs.items()}
        self.times[name] += 1
        self.shown[name, self.times[name]] = Value(
            self.part, copied, at_most, tolerance, beside, names
        )

    def said(self, names, wrong):
        """Show for each of these properties what violates it, "" if nothing does, and return
        whether `wrong` has any. wrong: {name: what violates it}"""
        for name in names:
            self(name, wrong.get(name, ""))
        return bool(wrong)

    def give(self, name, value, learns=False):
        """An input, copied and changed as this variant requires. learns: `backward` shows its
        gradient."""
        with self.made.aside():
            value, leaves = probes.given(value, self.variant, learns)
        self.given |= {f"{name}{key}": leaf for key, leaf in leaves.items()}
        return value

    def counted(self, name, f):
        """f, wrapped for the answer. For each part of the script, the number of calls is shown."""
        self.counts[name] = 0

        def given(*args, **named):
            self.counts[name] += 1
            return f(*args, **named)

        return given

    @contextlib.contextmanager
    def during(self, part, section=False):
        """A part of the script, which verdicts name. section: it has a section of its own in the
        ranks' logs, so that it may send what the rest may not."""
        self.part, self.counts = part, dict.fromkeys(self.counts, 0)
        what = ", ".join(filter(None, [self.case.what, part]))
        label = replace(self.case, what=what) if section else self.case
        yield partial(self._run, label)
        self.settle()
        for name, count in self.counts.items():
            self(f"calls of {name}", count)

    def run(self, f, *args, **named):
        """Call f, which belongs to the answer, and return what it returns."""
        with self.during(self.part) as run:
            return run(f, *args, **named)

    def refused(self, f, *args):
        """Like `run`, for a call that should raise one of EXPECTED_ERRORS. If it does, None is
        returned; the error's type, if any, is shown. NotImplementedError is raised again."""
        out, error_type = None, ""
        try:
            out = self.run(f, *args)
        except EXPECTED_ERRORS as error:
            if type(error) is NotImplementedError:
                raise
            self.given_up()
            error_type = type(error).__name__
        self(ERROR, f"[{error_type}]")
        return out

    def returned(self, out, good, expected, name) -> bool:
        """Show whether the answer has returned something and, under `name`, whether the result is
        what is `expected`. good: whether it is; this is also what the method returns."""
        self(RETURNED, f"got None, expected {expected}" if out is None else "")
        self(name, "" if good or out is None else f"got {described(out)}, expected {expected}")
        return good

    def wrong(self, *names) -> bool:
        """True if something shown under these names so far differs from the reference, on any rank.
        The script should then return, because what follows would reveal nothing more."""
        if self.lib is None:  # this is the reference
            return False
        with unwatched():
            self.stopped = not self.agreed(not self._differs(names))
        return self.stopped

    def _differs(self, names):
        mine = {key: value for key, value in self.shown.items() if key[0] in names}
        libs = {key: self.lib.shown[key] for key in mine if key in self.lib.shown}
        return bool(compared_with(self.case, mine, libs))

    def values(self) -> dict:
        """{(name, time, key): all that was shown}."""
        return {
            (*key, inner): x for key, one in self.shown.items() for inner, x in one.values.items()
        }

    def agreed(self, ok) -> bool:
        """True if `ok` holds on every rank. Without ranks, that is `ok` itself."""
        return ok

    def settle(self):
        """Wait until nothing of this part is in flight."""

    def _run(self, label, f, *args, **named):
        everything = [*args, *named.values()]
        with unwatched():
            before = probes.before(everything)
        out = self.call(label, f, *args, **named)
        self.returned_none.append(out is None)
        with unwatched():
            found = probes.after(before, everything, out)
            names = probes.names_of(f, args, named) if probes.of_arguments(found) else ()
            for name, value in found.items():
                self._note(name, by_key(value), names=names)
            if self.variant == probes.AGAIN:
                self.held.append((out, probes.frozen(out)))
        return out

    def backward(self, *ys, section=False):
        """Run the backward pass of each y, and show the gradients of all inputs that learn. If
        autograd refuses a gradient on ranks, for example for its shape, its message is shown
        instead. section: as for `during`."""
        refused = ""
        for number, y in enumerate(ys):
            if torch.is_tensor(y) and y.requires_grad:
                with self.made.aside():
                    dy = draw(17 * self.draws + number, *y.shape).to(y)
                with self.during("backward", section=section) as run:
                    try:
                        run(y.backward, dy)
                    except RuntimeError as error:
                        frames = traceback.extract_tb(error.__traceback__)
                        mine = any(is_students(frame.filename) for frame in frames)
                        if mine or self.call is not called:  # without ranks, report any error
                            raise
                        self.given_up()
                        refused = str(error).partition("\n")[0]
            else:
                self.settle()  # as the ranks do where y has a graph
        for name, leaf in self.given.items():
            self(f"the gradient of {name}", refused or leaf.grad)

    def given_up(self):
        """A call has raised, and its error is shown: end its section of the ranks' logs."""
        if self.call is called:
            ledger.mark("")


class ShowOnRanks(Recorder, Show):
    """A Show on ranks, whose own methods `show.all_reduce`, ... are the collectives given to an
    answer."""

    def __init__(self, wire, case, *args):
        self.gates, self.before_this_part = None, []
        hold = lambda call: self.gates and self.gates.hold(call)
        Recorder.__init__(self, wire, [case.members], before=hold, raises=False)
        Show.__init__(self, case, *args)
        self.threads = started_threads()

    def give(self, name, value, learns=False):
        """As in Show, but on the device from which the ranks send."""
        to = lambda x: x.to(backend.device()) if torch.is_tensor(x) else x
        return super().give(name, tree_map(to, value), learns)

    @property
    def all_calls(self):
        return [*self.before_this_part, *self.calls]

    def begin(self, phase=""):
        """Begin a new part, with a list of calls of its own. A mismatch that was seen earlier is
        kept."""
        if hasattr(self, "calls"):
            self.before_this_part = self.all_calls
        kept = getattr(self, "stray", None), getattr(self, "clash", None)
        Recorder.begin(self, phase)
        self.stray, self.clash = kept

    def settle(self):
        collectives.start(lambda: None).wait()  # comes after all that is left in the background
        Recorder.end(self)

    end = settle

    def gated(self, gates):
        """The Gates of a backward pass with this many gates (overlap.py); 0 gates hold no call.
        Call `pass_one` at each gate, `end` when backward has ended, and then `ungated`."""
        watch = Gates(gates, threads=self.threads)
        self.gates = watch if gates else None
        return watch

    def ungated(self, watch):
        """The answer's function has returned: hold no more calls, and wait for all of them."""
        watch.over()
        self.settle()
        self.gates = None

    def length(self, tensors) -> float:
        """The norm of all ranks' tensors as one vector, however it is sharded over the ranks."""
        with unseen():
            total = torch.zeros((), dtype=torch.float64)
            for tensor in tensors:
                total += tensor.detach().double().cpu().square().sum()
            return sum(self.gathered(total)).sqrt().item()


@dataclass(frozen=True)
class Value:
    """What was shown once: in which part of the script, {key: value}, how it is compared, what the
    verdict adds if it is wrong, and the argument names of the call that it is about."""

    part: str
    values: dict
    at_most: bool
    tolerance: float | None
    beside: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class SideBySide:
    """A measure that runs one script.

    builds: modules (names, or files ending in .py) that an answer may not call, return or subclass,
        because the exercise is to write them.
    writes: if an answer is to be a subclass of lib's own class, the methods that it has to write.
    groups: cases -> {case: what the script is given as its group}; None for a function without
        ranks.
    excused: {probe or variant: why it does not apply}.
    together: two cases whose scripts run in turn, in place of the first two on the same ranks.
    slack: {probe: bytes that an answer may keep beyond lib's, or a function of the case}.
    world: world(case) is the number of ranks of the launch in which it runs; None for a single
        launch.
    """

    script: object
    reference: object
    cases: tuple
    builds: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    groups: object = groups_of
    excused: dict = field(default_factory=dict)
    together: tuple = ()
    slack: dict = field(default_factory=dict)
    world: object = None

    def __post_init__(self):
        if unknown := set(self.excused) - set(probes.ALL):
            raise ValueError(f"no probe is called {sorted(unknown)}: {', '.join(probes.ALL)}")

    def exercise(self, *rows, **others) -> Exercise:
        """The Exercise that this measures, with claims from these rows (`shown.claims`). others:
        its other fields. Without `worlds`, it needs no ranks."""
        known = {"name": self.reference.__name__, "reference": self.reference, "worlds": ()}
        return Exercise(measure=self, claims=claims(self, *rows), **(known | others))

    def pair(self):
        first, *more = self.cases
        alike = (case for case in more if case.members == first.members)
        return self.together or (first, next(alike, first))

    def runs(self) -> dict:
        """{the case as a verdict names it: (the cases whose scripts run in turn, the variant)}"""
        pair, found = self.pair(), {case: ((case,), "") for case in self.cases}
        for variant in probes.VARIANTS:
            if variant not in self.excused:
                cases = pair if variant == probes.TWO else pair[:1]
                what = ", ".join(filter(None, [cases[0].what, variant]))
                found[replace(cases[0], what=what)] = (cases, variant)
        return found

    def of_world(self, world_size) -> tuple:
        """The cases of `runs` that belong to a launch of this many ranks."""
        return tuple(c for c in self.runs() if not self.world or self.world(c) == world_size)

    def __call__(self, fn):
        if self.groups is None:
            both = (self._compared(fn, case, None) for case in self.runs())
            return [record | ({} if record["ok"] else more()) for record, more in both]
        cases, one = self.of_world(dist.get_world_size()), partial(self._compared, fn)
        return in_step(cases, self.groups, one)

    def _compared(self, fn, case, group):
        """The record of one case, {"wrong": {name: Problem}, "trace": ..., ...}, and what
        `in_step` calls if the case is wrong on any rank."""
        on_ranks = self.groups is not None
        kept = _kept(self.reference, self.cases, () if on_ranks else _defaults())
        if case not in kept:
            kept[case], _ = self._shown(self.reference, case, group, _plainly, [])
        want = kept[case]
        if of_lib := self._is_of_lib(fn):
            problem = Problem("built-in", of_lib)
            return {"ok": False, "wrong": {"": problem}, "trace": {}, "unseen": set()}, dict
        # on ranks only in the first case, because it takes time to watch all calls
        can_watch = self.writes or inspect.isfunction(self.reference)
        watch = not on_ranks or (can_watch and case == self.cases[0])
        with noting_calls(*self._of_lib()) if watch else contextlib.nullcontext() as of_lib:
            call = called if on_ranks else _plainly
            got, error = self._shown(fn, case, group, call, want)
        wrong, unseen = {}, set()
        for a, b in zip(got, want, strict=True):
            wrong = differences(case, a, b, self.excused, self.slack) | wrong
            unseen |= {name for name, _ in b.shown.keys() - a.shown.keys()}
        if error:  # what it prevented from being shown is not wrong
            wrong = {k: one for k, one in wrong.items() if k not in unseen} | {"": error}
        if of_lib:
            text = f"it calls {of_lib[0]}, which this exercise asks you to build"
            wrong = {"": Problem("built-in", text)}
        record = {"ok": not wrong, "wrong": wrong, "trace": traced(wrong, got), "unseen": unseen}
        record["judged"] = got[0].judged
        record["names"] = {name for show in want for name, _ in show.shown}
        if on_ranks:
            record |= _sent(got, want)
            record["ok"] = not (wrong or record["stray"] or record["clash"])
        small, first = whose.small, want[0]
        return record, lambda: {"wants": small(first.values()), "parts": small(first.given)}

    def _is_of_lib(self, fn) -> str:
        """A sentence that says which part of the answer is lib's own; "" if none is."""
        if any(kind.__module__ in self.builds for kind in getattr(fn, "__mro__", ())):
            return "the answer is lib's own class, or a subclass of it"
        libs = lambda name: getattr(fn, name, None) is getattr(self.reference, name)
        said = (f"{name}() of the answer is lib's own" for name in self.writes if libs(name))
        return next(said, "")

    def _of_lib(self):
        """The functions and files that no answer may call."""
        files = [one for one in self.builds if one.endswith(".py")]
        own = [getattr(self.reference, name) for name in self.writes]
        return [*map(inspect.unwrap, own or functions_of(self.reference)), *files]

    def _shown(self, fn, case, group, call, of_lib):
        """([Show of each script], the Problem if the answer raised without ranks, else None). Two
        scripts of a case take turns. of_lib: the Shows of lib's own; [] while it is shown itself.
        """
        (cases, variant), shows, scripts = self.runs()[case], [], []
        for number, one in enumerate(cases):
            label = replace(one, what=f"{one.what}, the other of two") if number else case
            shows.append(self._show(label, number, call, variant))
            shows[-1].lib = of_lib[number] if of_lib else None
            scripts.append(self._steps(fn, one, group, shows[-1]))
        with probes.own_generators(list(self.runs()).index(case)):
            try:
                for _ in itertools.zip_longest(*scripts):
                    pass
                if variant == probes.AGAIN:
                    shows = [self._again(fn, group, shows[0], call)]
            except Exception as error:
                lib_failed = not of_lib  # the check's own error, for example a full disk
                on_ranks = self.groups is not None  # where the launcher reports it
                if lib_failed or on_ranks or type(error) is NotImplementedError:
                    raise
                problem = of_error(error, case.name)
                problem.facts["case"] = case
                return shows, problem
        return shows, None

    def _show(self, case, number, call, variant=""):
        args = (case, call, variant, number)
        if self.groups is None:
            return Show(*args)
        return ShowOnRanks(Wire(case.members, f"of script {number}"), *args)

    def _again(self, fn, group, first, call):
        """Run the script with another case, overwrite all that the first run returned, and run the
        first case again. Neither of the two later runs may change what the first one returned."""
        held, changed = first.held, set()
        for number, case in enumerate(reversed(self.pair())):
            show = self._show(first.case, 0, call)
            show.draws = 1
            for _ in self._steps(fn, case, group, show):
                pass
            changed |= {str(i) for i, (out, then) in enumerate(held) if not probes.same(out, then)}
            if not number:
                held = [(out, probes.overwritten(out)) for out, _ in held]
        show("changed later", ", ".join(sorted(changed)))
        return show

    def _steps(self, fn, case, group, show):
        """Run the script, which may be a generator, and show what is alive at each `yield` and at
        the end."""
        args = (fn, case, show) if self.groups is None else (fn, case, group, show)
        with show.made:
            steps = self.script(*args)
        for number in itertools.count() if inspect.isgenerator(steps) else ():
            with show.made:
                if next(steps, steps) is steps:
                    break
            if "alive" not in self.excused:
                show(f"alive by {number}", show.made.alive(), at_most=True)
            yield
        steps = None
        if "alive at the end" not in self.excused:
            show("alive at the end", show.made.alive(), at_most=True)


def _plainly(case, f, *args, **named):
    return f(*args, **named)


@functools.lru_cache(maxsize=8)
def _kept(reference, cases, defaults):
    """{case: the Shows of lib's own function}, for later checks of this exercise in this process.
    lib's own would show the same again, because whatever is random in a script follows from its
    case, and ranks are restored after each run (leftovers.py)."""
    return {}


def _defaults():
    """What cells may have changed in the kernel, which nothing restores there."""
    return torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()


def _sent(got, want):
    """What the ranks called, for the judges of traffic.py and shown.py."""
    first = lambda key: next(filter(None, (getattr(show, key) for show in got)), None)
    calls = {"calls": got[0].all_calls, "wanted": want[0].all_calls}
    return got[0].record() | calls | {key: first(key) for key in ("stray", "clash")}
