"""Lab 4, section 7: recompute(f, x), of which only x is kept until backward. It needs no ranks.

    forward  f  torch.rand(3)  backward  numbers are drawn elsewhere between the two
    look at  y                 gradients, random state, how often f was called

Every case is compared with the same function called as it is, from the same random state.
"""

import torch
import torch.utils.checkpoint as torchs
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from lib.check import symptoms as s
from lib.check.claims import claim, compared, without_ranks
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.failure import of_error
from lib.check.pure import noting_calls
from lib.training import recompute as libs

CASES = {  # what x is, and through what it goes
    "layers": "a leaf, through two layers",
    "features": "it needs no gradient, the layers do",
    "tokens": "of integers, through an embedding",
    "nobody": "no rows",
    "dropout": "computed from a leaf; random numbers",
    "two under way": "two calls with random numbers, then backward of the first, then of the "
    "second",
    "twice": "f(f(x)), f a module: the weights get two gradients",
    "nested": "f recomputes a part of itself",
}
THEIRS = {libs.__file__: "lib's recompute", torchs.__file__: "torch.utils.checkpoint"}
ROWS = {"nobody": 0}


def _leaf(name):
    if name == "tokens":
        return torch.tensor([[1, 1, 4], [0, 2, 1]])
    return torch.randn(ROWS.get(name, 3), 4, dtype=torch.float64).requires_grad_(name != "features")


def _net(name):
    if name == "tokens":
        return nn.Embedding(5, 4, dtype=torch.float64)
    between = nn.Dropout(0.5) if name in ("dropout", "two under way") else nn.Tanh()
    return nn.Sequential(nn.Linear(4, 6), between, nn.Linear(6, 4), nn.Tanh()).double()


def _calls_of(name, through, count):
    """([y, ...], {name: leaf}): the case's calls of through(f, x); each call of an
    f counts in `count`."""
    nets, leaves = [_net(name) for _ in range(2)], [_leaf(name) for _ in range(2)]

    def f(x, net=nets[0]):
        count[0] += 1
        return net[2:](through(net[:2], x)) if name == "nested" else net(x)

    x = 2 * leaves[0] if name == "dropout" else leaves[0]
    ys = [through(nets[0], through(nets[0], x)) if name == "twice" else through(f, x)]
    if name == "two under way":
        ys.append(through(lambda x: f(x, nets[1]), leaves[1][:2]))
    learn = {f"x{i or ''}": leaf for i, leaf in enumerate(leaves[: len(ys)]) if leaf.requires_grad}
    return ys, learn | {
        n: p
        for net in nets[: len(ys)]
        for n, p in net.named_parameters(f"net{nets.index(net) or ''}")
    }


def _run(name, through):
    """{"ys", "states", "calls", "gradients"}, or those up to where it "failed"."""
    seen, count = {"states": {}, "calls": [], "failed": None}, [0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(list(CASES).index(name))
        way = "forward"
        try:
            ys, learn = _calls_of(name, through, count)
            seen["ys"] = [
                (y.detach().clone(), y.requires_grad) if torch.is_tensor(y) else (y, False)
                for y in ys
            ]
            seen["states"][way], way = torch.get_rng_state(), "backward"
            seen["calls"].append(count[0])
            torch.rand(3)
            for y in ys:
                if torch.is_tensor(y) and y.requires_grad:
                    (
                        y * torch.arange(1.0, y.numel() + 1, dtype=y.dtype).view(y.shape)
                    ).sum().backward()
        except Exception as error:
            if type(error) is NotImplementedError:
                raise
            seen["failed"] = of_error(error, f"{name}, {way}")
            seen["failed"].facts["case"] = name
            return seen
        seen["states"][way] = torch.get_rng_state()
        seen["calls"].append(count[0] - seen["calls"][0])
        return seen | {"gradients": {name: leaf.grad for name, leaf in learn.items()}}


def _kept(through):
    """Of through(f, x), in the case "layers", before backward: bytes saved, bytes of x, is
    y kept by the graph?"""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net, x = _net("layers"), _leaf("layers")
        with libs.SavedBytes(besides=net.parameters()) as saved:
            y = through(net, x)
            graph, of_y, nbytes = y.grad_fn, StorageWeakRef(y.untyped_storage()), saved.nbytes()
            del y  # its graph is alive
            return nbytes, x.nbytes, graph is not None and not of_y.expired()


def _measure(fn):
    """{claim: {case: None, or the Problem}}; only values are looked at where they are wrong."""
    with noting_calls(*THEIRS) as theirs:
        answers = {name: _run(name, fn) for name in CASES}
    if theirs:
        return {
            "value": {
                "layers": Problem(
                    "built-in", f"it calls {THEIRS[theirs[0]]}, which this exercise builds"
                )
            }
        }
    plain = {name: _run(name, lambda f, x: f(x)) for name in CASES}
    values = {name: _wrong_value(name, answers[name], plain[name]) for name in CASES}
    right = [name for name in CASES if values[name] is None]
    return {
        "value": values,
        "random": {name: _wrong_state(name, answers[name], plain[name]) for name in right},
        "kept": {"layers": _keeps_more(fn)} if "layers" in right else {},
        "calls": {
            name: _called(name, answers[name]) for name in right if name not in ("twice", "nested")
        },
    }


def _wrong_value(name, got, want):
    facts = {"case": name}
    if got["failed"]:
        return got["failed"]
    for (y, learns), (expected, should) in zip(got["ys"], want["ys"], strict=True):
        if problem := compared(f"{name}: y", y, expected):
            problem.facts |= facts
            return problem
        if should and not learns:
            return Problem(
                "cut off",
                f"{name}: y does not need a gradient, so no backward will come here",
                facts,
            )
    if got["gradients"].keys() != want["gradients"].keys():
        return Problem("touched", f"{name}: x, which needs no gradient, is made to need one", facts)
    for tensor, gradient in want["gradients"].items():
        mine, facts = got["gradients"][tensor], {"of x": tensor.startswith("x"), "case": name}
        if mine is None:
            return Problem("no gradient", f"{name}: {tensor} got no gradient", facts)
        if problem := compared(f"{name}: the gradient of {tensor}", mine, gradient):
            return Problem("gradient", problem.text, problem.facts | facts, problem.trace)
    return None


def _wrong_state(name, got, want):
    for way, state in want["states"].items():
        if not torch.equal(got["states"][way], state):
            text = (
                f"{name}: after {way} the random generator is not where it would be without "
                f"recomputation"
            )
            return Problem("state", text, {"way": way})
    return None


def _keeps_more(fn):
    got, most, keeps_y = _kept(fn)
    if got <= most:
        text = (
            f"layers: between forward and backward y is kept, too, expected x alone, {most} bytes"
        )
        return Problem("kept", text) if keeps_y else None
    return Problem(
        "kept",
        f"layers: between forward and backward {got} bytes are kept, expected {most}: x alone",
    )


def _called(name, got):
    forward, backward = got["calls"]
    if forward == backward == len(got["ys"]):
        return None
    text = (
        f"{name}: f was called {forward} times in forward and {backward} in backward, expected "
        f"once each"
    )
    return Problem("calls", text, {"calls": got["calls"]})


def _found(kind, *names):
    @without_ranks
    def judge(seen):
        found = seen.get(kind, {})
        return next(filter(None, (found.get(name) for name in names or CASES)), None)

    return judge


def _of(*cases):
    return lambda p: p.fact("case") in cases


EXERCISE = Exercise(
    name="recompute", reference=libs.recompute, measure=_measure, worlds=(),
    leaves_out={
        "alone": "there are no ranks",
        "generators": "no argument is an iterator",
        "returned": "it is compared with what f alone returns",
    },
    claims=(
        claim("output and gradients", 2, "of x and the weights; tokens",
              _found("value", "layers", "features", "tokens", "nobody")),
        claim("the same random numbers", 2, "dropout; the generator is left where it was",
              _found("value", "dropout"), _found("random")),
        claim("again and again", 2, "f(f(x)), and inside one another", _found("value")),
        claim("keeps x alone", 5, "bytes that the graph has saved", _found("kept")),
        claim("f runs twice", 3, "in forward, and in backward", _found("calls")),
    ),
    hints=(
        s.BUILT_IN.saying(
            "write the torch.autograd.Function yourself: forward calls f and saves x, backward "
            "calls f again."),
        Hint("what the calls share", s.both(s.kind("raised", "value", "gradient", "no gradient"),
            _of("two under way")),
             "two calls may be under way at once: what backward needs of this call belongs on ctx, "
             "not on the class, on the function or in a global."),
        Hint("tokens have no gradient", s.either(s.refused("integers"), s.kind("touched")),
             "x may be of integers, or need no gradient: "
             "x.detach().requires_grad_(ctx.needs_input_grad[i]), with i the place of x among the "
             "inputs."),
        Hint("without a graph again", s.refused("no graph"),
             "backward runs without a graph, as forward does. Call f inside `with "
             "torch.enable_grad():`."),
        Hint("not a gradient for each input", s.refused("not a gradient for each"),
             "backward returns as many values as forward has inputs after ctx; None for those "
             "without a gradient."),
        Hint("the first graph", s.refused("graph freed"),
             "a graph can be gone through once. Let each backward make its own: call f in it."),
        Hint("something raised", s.kind("raised"),
             "do it by hand for one layer: what is x, what is dy?"),
        Hint("no backward without a gradient of x",
             s.both(s.kind("cut off"), _of("tokens", "features")),
             "autograd leaves a Function out if no tensor among its inputs needs a gradient, "
             "though f's weights need one. Give apply a second input that does: torch.empty(0, "
             "requires_grad=True)."),
        Hint("cut off", s.kind("cut off"),
             "y has lost its graph: return what apply() returns, without detach or no_grad around "
             "it."),
        Hint("another output", s.kind("value", "form"),
             "forward returns f(x), and changes nothing of it."),
        Hint("doubled", s.fact("factor", 2.0),
             "a gradient arrives twice. The second call must run on x.detach(), or backward goes "
             "through the first x too; and torch.autograd.backward adds to the weights' .grad "
             "already."),
        Hint("x has no gradient", s.both(s.kind("no gradient"), s.fact("of x")),
             "backward returns the gradient of x: x.grad of the detached copy, which must require "
             "one."),
        Hint("the weights have no gradient", s.kind("no gradient"),
             "f's weights are no inputs of the Function: their gradients come from "
             "torch.autograd.backward([y], [dy]), which adds to their .grad. "
             "torch.autograd.grad(y, x, dy) gives that of x alone."),
        Hint("other random numbers", s.both(s.kind("gradient"), _of("dropout")),
             "the second call drops other elements than the first. Note torch.get_rng_state() "
             "before the first call, and set it before the second."),
        Hint("another gradient", s.kind("gradient"),
             "backward starts from dy, what the loss sends back to y: torch.autograd.backward([y], "
             "[dy]); and what micro-batches left in .grad stays."),
        Hint("the generator was moved by backward", s.kind("state", way="backward"),
             "after the second call put the generator back to where backward found it: `with "
             "torch.random.fork_rng(devices=[]):` around it."),
        Hint("the generator was not moved by forward", s.kind("state"),
             "the first call draws as f alone would, or the next layer draws the same numbers "
             "again: no fork_rng there."),
        Hint("the graph is kept", s.kind("kept"),
             "all that f computed is kept until backward: call f without a graph in forward, and "
             "save x alone."),
        Hint("f runs too often", s.kind("calls"),
             "each call costs a forward: one in forward, one in backward."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
