"""What the harness examines in every exercise, whatever the exercise builds.

Each probe is recorded for lib's own function, the reference, and for the answer, and the two are
compared (side_by_side.py).

of every call       arguments           which arguments have changed
                    storage             of each returned tensor: new memory, or an argument's
                    graph               of each returned tensor: whether it requires a gradient
                    generators          the states of Python's, NumPy's and torch's generators
of every script     alive by 0, 1, ...  bytes of floating-point tensors at each `yield`, whether
                                        ctx, a graph, a list or a view of a larger tensor holds them
                    alive at the end    the same when the script has returned
of the first case,  strided             inputs that are not contiguous
run again           float32, bfloat16   inputs of another dtype
                    two at once         two scripts in turn, which must not share what a call keeps
                    once more           the first case and another one; then the caller overwrites
                                        what the first returned, and the first case runs again

An exercise excuses a probe with a reason (`SideBySide(excused={"float32": "why"})`), and `python -m
lib.check` prints the reasons.
"""

import contextlib
import gc
import inspect
import random
from collections import deque

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from lib.backend.torch_private import TorchDispatchMode
from lib.check.explain import grouped
from lib.ledger import caller

OF_A_CALL = ("arguments", "storage", "graph", "generators")
OF_A_SCRIPT = ("alive", "alive at the end")
STRIDED, DTYPES, TWO, AGAIN = "strided", ("float32", "bfloat16"), "two at once", "once more"
VARIANTS = (STRIDED, *DTYPES, TWO, AGAIN)  # of the first case
ALL = (*OF_A_CALL, *OF_A_SCRIPT, *VARIANTS)
FEW = 64  # bytes: a number, an empty tensor
WORDS = {
    "arguments": "the argument {} has changed, but it belongs to the caller, who needs it again",
    "storage": "the result shares its memory with the argument {}, so changing one changes both",
    "graph": "the result requires {} gradient, expected {}",
    "generators": "{} global random generator has been advanced or seeded",
    "changed later": "the result of call {} has changed during a later call",
    "alive": "{} bytes are still allocated, expected at most {}",
    "alive at the end": "{} bytes are still allocated at the end, expected at most {}",
}
caller.look_through(__file__)  # `Made` is on the stack between an answer and what it sends


def named(name: str) -> str:
    """The probe that a shown name belongs to. `alive by 0`, `alive by 1`, ... belong to "alive"."""
    return "alive" if name.startswith("alive by ") else name


def is_probe(name: str) -> bool:
    return named(name).partition(" ")[0] in OF_A_CALL or named(name) in WORDS


def given(value, variant, learns):
    """Return (the input as this variant changes it, {"" or ".field": its leaf}). In a named tuple
    that learns, all floating-point tensors learn.

    A leaf is the tensor that receives a gradient; the answer gets a tensor computed from it.
    """
    leaves = {}

    def one(key, x):
        if not torch.is_tensor(x):
            return x
        x = x.clone()
        if x.is_floating_point():
            x = x.to(getattr(torch, variant)) if variant in DTYPES else x
            if learns:
                leaves[key] = x.requires_grad_()
        if variant == STRIDED and x.dim():
            return torch.stack([x, x], -1)[..., 0]
        return x.clone() if learns and x.is_floating_point() else x

    if hasattr(value, "_fields"):
        changed = {field: one(f".{field}", getattr(value, field)) for field in value._fields}
        return value._replace(**changed), leaves
    return one("", value), leaves


def frozen(x) -> list:
    """Copies of all tensors in x, and what else it contains, for `same`. They do not change when
    the originals do."""
    return [leaf.detach().clone() if torch.is_tensor(leaf) else leaf for leaf in leaves(x)]


def same(a, b) -> bool:
    one, two = leaves(a), leaves(b)
    return len(one) == len(two) and all(map(_alike, one, two))


def _alike(x, y):
    if torch.is_tensor(x) and torch.is_tensor(y):
        return x.shape == y.shape and torch.equal(x.detach(), y)
    with contextlib.suppress(Exception):
        return x is y or bool(x == y)
    return True  # what cannot be compared


def before(args):
    return [(frozen(x), [t.requires_grad for t in tensors(x)]) for x in args]


def after(before_, args, out) -> dict:
    """{probe: what is shown} for the call that returned `out`. before_: from `before`."""
    addresses = {
        x.untyped_storage().data_ptr(): str(number)
        for number, arg in enumerate(args)
        for x in tensors(arg)
        if x.numel()
    }
    returned = {str(i): x for i, x in enumerate(tensors(out))}
    argument_of = lambda x: addresses.get(x.untyped_storage().data_ptr(), "") if x.numel() else ""
    unchanged = lambda x, then: (
        same(x, then[0]) and [t.requires_grad for t in tensors(x)] == then[1]
    )
    states = {
        "Python's": hash(random.getstate()),
        "NumPy's": hash(np.random.get_state()[1].tobytes()),
        "torch's": hash(torch.get_rng_state().numpy().tobytes()),
    }
    changed = [
        str(i) for i, (x, then) in enumerate(zip(args, before_, strict=True))
        if not unchanged(x, then)
    ]  # fmt: skip
    return {
        "arguments": ", ".join(changed),
        "storage": [(key, argument_of(x)) for key, x in returned.items()],
        "graph": [(key, x.requires_grad) for key, x in returned.items() if x.is_floating_point()],
        "generators": [*states.items()],
    }


def tensors(x) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(x) if isinstance(leaf, torch.Tensor)]


def leaves(x) -> list:
    """What x contains, at any depth; [x] if x is no container. torch's tree_leaves would be slower
    by a factor of ten."""
    inside = x.values() if isinstance(x, dict) else x
    if not isinstance(x, (dict, list, tuple, deque)):
        return [x]
    return [leaf for one in inside for leaf in leaves(one)]


def as_right(case, name, got, want, slack) -> bool:
    """True if a value that differs from lib's is right, too. Where lib's returns an argument's
    memory, an answer may return new memory, and it may keep less than lib's or a few bytes more.
    slack: {name: how many bytes more, or a function of the case}."""
    if name.startswith("storage"):
        return got == ""
    more = slack.get(name, slack.get(named(name), FEW))
    room = more(case) if callable(more) else more
    return named(name) in OF_A_SCRIPT and isinstance(got, (int, float)) and got <= want + room


def of_arguments(found) -> bool:
    """Does this result of `after` number any arguments?"""
    return bool(found["arguments"] or any(number for _, number in found["storage"]))


def names_of(f, args, named) -> tuple[str, ...]:
    """The names of the arguments of a call, in the order in which `after` counts them."""
    try:
        parameters = [*inspect.signature(f).parameters.values()]
    except (TypeError, ValueError):
        return ()
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (*plain[: len(args)], *named) if len(plain) >= len(args) else ()


def words(name, got, want, names=()) -> str:
    """The sentence of a probe's Problem; "" if the name is not a probe's. names: those of the
    arguments, which the probes number."""
    probe, _, which = name.partition(" ")
    sentence = WORDS.get(named(name), WORDS.get(probe, ""))
    if probe in ("arguments", "storage"):
        got, want = (_named_arguments(said, names) for said in (got, want))
    if probe == "generators":
        return sentence.format(which)
    if probe == "graph":
        return sentence.format(*(("no", "one") if want else ("a", "none")))
    if probe == "arguments" and not got:
        return f"the argument {want} has not changed; it should be changed in place"
    if isinstance(got, int):
        got, want = grouped(got), grouped(want)
    return sentence.format(got or "none", want)


def _named_arguments(numbers, names) -> str:
    """ "0, 2" as "`x`, `sizes`"."""
    if not isinstance(numbers, str):
        return numbers
    name = lambda n: f"`{names[int(n)]}`" if n.isdigit() and int(n) < len(names) else n
    return ", ".join(map(name, numbers.split(", ")))


@contextlib.contextmanager
def own_generators(seed):
    """Within this context, the global generators have states that follow from `seed`; afterwards
    they are restored. The garbage collector looks only at what is made inside, so it is quick."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gc.freeze()
    # torch.manual_seed would also queue a seed for each kind of device, which takes milliseconds
    random.seed(seed), np.random.seed(seed), torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        gc.unfreeze()
        random.setstate(states[0]), np.random.set_state(states[1]), torch.set_rng_state(states[2])


@torch.no_grad()
def overwritten(out):
    """Overwrite what was returned, as its caller may. Returns a copy of what it then contains."""
    for x in tensors(out):
        with contextlib.suppress(RuntimeError):  # expanded, or needed by a graph
            x.detach().fill_(7)
    if isinstance(out, (list, dict)):
        out.clear()
    return frozen(out)


class Made(TorchDispatchMode):
    """Records the storage of every floating-point tensor that is made inside, by any code.

    `alive()`: the bytes of those storages that something still holds.
    """

    def __init__(self):
        super().__init__()
        self.storages, self.asides = {}, 0

    @classmethod
    def _should_skip_dynamo(cls):
        """Called by torch. If this returned True, the first op would import torch._dynamo, which
        takes a second."""
        return False

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        made = op(*args, **(kwargs or {}))
        for x in tensors(made):
            if x.is_floating_point() and type(x) in (torch.Tensor, torch.nn.Parameter):
                storage = x.untyped_storage()
                ref = StorageWeakRef(storage)
                nbytes = 0 if self.asides else storage.nbytes()
                self.storages.setdefault(ref.cdata, (ref, nbytes))
        return made

    @contextlib.contextmanager
    def aside(self):
        """Tensors made in this context do not count: the check makes them, and may pass them to the
        answer."""
        self.asides += 1
        try:
            yield
        finally:
            self.asides -= 1

    def alive(self) -> int:
        gc.collect()
        self.storages = {k: one for k, one in self.storages.items() if not one[0].expired()}
        return sum(nbytes for _, nbytes in self.storages.values())
