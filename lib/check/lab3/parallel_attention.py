"""Lab 3, section 4: ParallelAttention(attention, group, column_linear, row_linear), a rank's heads.

    H = 4 tp heads of width 2, K = H or K = 2 tp key/value heads; on a rank 4 heads, and 4 or 2 for
    keys and values

What the given `column_linear` and `row_linear` multiply with is noted: those are the rank's layers,
whatever the answer calls them. Output and gradients are those of the plain attention in one
process.
"""

import gc
import inspect
import weakref
from functools import partial

import torch
import torch.distributed as dist

from lib.check import symptoms as s
from lib.check.cases import Case, draw
from lib.check.claims import claim, each, kept, left_alone
from lib.check.comm import Clash
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.forward_backward import MAPPINGS
from lib.check.lab3 import both_ways as ways
from lib.check.traffic import fitting, only_calls
from lib.tensor_parallel import block, linear, mappings
from lib.training.model import Attention, Shape

HEAD_DIM, B, T = 2, 2, 3
FULL, GROUPED = "as many k/v heads", "grouped-query"
# 4 ranks do not divide them, but the layers' widths
UNEVEN = {"6 heads": (6, 6), "2 key/value heads": (8, 2)}


def _case(ranks, what=GROUPED):
    return Case(ranks, B * T * HEAD_DIM * 4 * len(ranks), what=what)


CASES = (
    _case(ways.GROUPS[0], FULL), *map(_case, ways.GROUPS), _case(ways.ALL, FULL),
    _case(ways.ALL, ways.AT_ONCE),
)  # fmt: skip
ALL_CASES = (*CASES, *(_case(ways.ALL, what) for what in UNEVEN))


def _plain(case):
    """The whole attention, alike on all ranks, its weights of about 1/2."""
    heads = 4 * case.world_size
    heads, kv_heads = UNEVEN.get(case.what, (heads, heads if case.what == FULL else heads // 2))
    plain = Attention(Shape(2, T, 1, HEAD_DIM * heads, heads, kv_heads)).double()
    for i, parameter in enumerate(plain.parameters()):
        parameter.data = draw(i, *parameter.shape) / 4
    return plain


def _make(case, rank):
    plain, given = _plain(case), _plain(case)
    D = plain.q.in_features
    b = case.n // (T * D)
    x, w = draw(ways.seed(case), b, T, D) / 2, draw(101, b, T, D)
    whole_x, x = x.clone().requires_grad_(), x.requires_grad_()
    want = plain(whole_x)
    (want * w).sum().backward()
    setting = ways.Setting(
        given=given,
        arguments={"x": x},
        outputs={"y": want.detach()},
        loss=lambda ys: (ys[0] * w).sum(),
        gradients={"x": whole_x.grad},
    )
    setting.case, setting.rank, setting.plain = case, rank, plain
    return setting


def _build(fn, setting, group, recorder):
    column_linear, setting.inward = _noting(
        linear.column_parallel, mappings.copy_to_group, recorder
    )
    row_linear, setting.outward = _noting(linear.row_parallel, mappings.reduce_from_group, recorder)
    if setting.case.what in UNEVEN:
        setting.outputs, setting.gradients, setting.read = {}, {}, list
        setting.module = _refused(fn, setting.given, group, column_linear, row_linear)
    else:
        try:
            setting.module = fn(setting.given, group, column_linear, row_linear)
        except ValueError as error:
            setting.module = Problem("refused", f"refused its part: ValueError: {error}")


def _start(fn, setting, group, recorder):
    """Run; the gradients of the rank's layers, found by what was multiplied, go
    into the setting."""
    module = setting.module
    if setting.case.what in UNEVEN or isinstance(module, Problem):
        return module
    try:
        y, raised = module(setting.arguments["x"]), None
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        y, raised = None, error
    in_lists = [layers for layers in setting.inward if isinstance(layers, (list, tuple))]
    if raised and len(in_lists) < len(setting.inward):
        return Problem(
            "no list",
            f"gave column_linear something else than a list: {type(raised).__name__}: {raised}",
        )
    called = [layer for layers in in_lists for layer in layers]
    for layers, names, dim in ((called, "qkv", 0), (setting.outward, ["out"], 1)):
        for layer in layers:
            if found := _part_of(setting, layer, names, dim):
                return found
    if raised:
        raise raised
    if any(isinstance(one, block.ParallelAttention) for one in module.modules()):
        return Problem("built-in", "is lib's ParallelAttention, or has one")
    setting.after = partial(_held, setting)
    return y


def _noting(multiply, mapping, recorder):
    """`multiply` as an answer gets it, and the list of what it was called with."""
    called, sends = [], partial(mapping, all_reduce=ways.in_place(recorder))
    by_name = inspect.signature(multiply)

    def product(*args, **named):
        x, layers, *group = by_name.bind(*args, **named).arguments.values()
        called.append(layers)
        return multiply(x, layers, *(group or [None]), sends)

    return product, called


def _refused(fn, given, group, column_linear, row_linear):
    """On sizes that the ranks do not divide: [], no output, or the Problem that there was
    no ValueError."""
    try:
        fn(given, group, column_linear, row_linear)
    except (ValueError, Clash):
        return []
    except Exception as error:
        return Problem("another error", f"raised {type(error).__name__}, expected a ValueError")
    return Problem("no error", "built its part, expected a ValueError")


def _part_of(setting, layer, names, dim):
    """Note whose part a layer is. Returns the Problem of one that is cut in a way that is
    known, and wrong."""
    N, rank = setting.case.world_size, setting.rank
    parts = {name: getattr(setting.plain, name).weight.detach().chunk(N, dim) for name in names}
    same = lambda other: layer.weight.shape == other.shape and layer.weight.equal(other)
    for name, cut in parts.items():
        if same(cut[rank]):
            whole = getattr(setting.plain, name)
            setting.leaves |= {f"{name}'s weight": layer.weight, f"{name}'s bias": layer.bias}
            bias = whole.bias.grad if dim else whole.bias.grad.chunk(N)[rank]
            setting.gradients |= {
                f"{name}'s weight": whole.weight.grad.chunk(N, dim)[rank],
                f"{name}'s bias": bias,
            }
            return None
    for name, cut in parts.items():
        whole = getattr(setting.plain, name).weight.detach()
        if same(whole.chunk(dist.get_world_size(), dim)[dist.get_rank()]):
            words = (
                f"has, of its layers, the part of rank {dist.get_rank()} of all "
                f"{dist.get_world_size()} of {name}"
            )
            return Problem("group", words)
        every = whole.unflatten(dim, (-1, HEAD_DIM)).movedim(dim, 0)[rank::N].movedim(0, dim)
        how = {
            ("whole", "the whole of"): whole,
            ("every", f"each {N}-th head of"): every.flatten(dim, dim + 1),
            ("dim", f"the chunk on dim {1 - dim} of"): whole.chunk(N, 1 - dim)[rank],
        } | {("rank", f"rank {r}'s part of"): one for r, one in enumerate(cut)}  # fmt: skip
        for (kind, words), other in how.items():
            if same(other):
                return Problem("cut", f"has, of its layers, {words} {name}", {"is": kind})
    return None


def _held(setting):
    """A Problem unless the module's parameters are a rank's part, in memory of their own, and
    nothing else is kept."""
    (plain, given), N = (setting.plain, setting.given), setting.case.world_size
    where = f"{setting.case.name}: {setting.case.rank(setting.rank)}"
    if not all(map(torch.equal, plain.parameters(), given.parameters())):
        return Problem("input", f"{where}: the plain attention's parameters have changed")
    whole = plain.out.bias.numel()
    want = (sum(p.numel() for p in plain.parameters()) - whole) // N + whole
    parameters = list(setting.module.parameters())
    got = sum(p.numel() for p in parameters)
    kept = (
        sum(
            {
                p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in parameters
            }.values()
        )
        // 8
    )
    at = lambda parameters: {p.untyped_storage().data_ptr() for p in parameters}
    shared = at(parameters) & at(given.parameters())
    weights = [weakref.ref(getattr(given, name).weight) for name in ("q", "k", "v", "out")]
    given = setting.given = None
    gc.collect()
    hidden = sum(weight().numel() for weight in weights if weight() is not None)
    if got == kept == want and not hidden and not shared:
        return None
    text = f"{where} has parameters of {got} elements, in memory for {kept}, expected {want}"
    if hidden:
        text += f"\nOf the plain attention it keeps weights of {hidden} elements."
    if shared:
        text += "\nSome lie in the memory of the plain attention's."
    return Problem("held", text, {"got": got, "want": want, "hidden": hidden})


def _another_cut(case, rank, record):
    """Before any value: one rank's wrong part makes all ranks' results wrong."""
    found = record["forward"]
    return found if found and found.kind in ("cut", "group") else None


EXERCISE = Exercise(
    name="ParallelAttention", reference=block.ParallelAttention,
    measure=partial(ways.measure, libs=block.ParallelAttention.__init__, cases=ALL_CASES,
    make=_make, build=_build,
                    start=_start),
    worlds=(ways.WORLD,),
    may_call=(*ways.MAY_CALL, *MAPPINGS, "parallel_attention.product", "linear.column_parallel",
    "linear.row_parallel"),
    leaves_out={
        "generators": "no argument is an iterator",
        "empty rank": "every rank has heads, and every batch tokens",
        "attributes": "later cells read none of it",
    },
    claims=(
        claim("the plain attention's output", 5, f"{ways.GROUPS_SAY}; grouped-query",
              fitting(CASES), each(CASES, _another_cut), ways.found(CASES, "forward"), kept(CASES)),
        claim("its gradients", 4, "of x, and of the rank's parts", ways.found(CASES, "backward")),
        claim("a rank's heads only", 3, "parameters: all but the last bias divided by tp",
              ways.found(CASES, "after"), left_alone(CASES)),
        claim("one all-reduce each way", 2, "by the given column_linear and row_linear", only_calls(
            CASES, lambda *of: ways.once("forward")(*of) + ways.once("backward")(*of))),
        claim("whole heads, or a ValueError", 2, "6 heads, 2 key/value heads on 4 ranks",
              ways.found(ALL_CASES, "forward")),
    ),
    hints=(
        s.CALLED_LIB.saying(
            "write the class yourself, from ColumnParallelLinear, RowParallelLinear, "
            "split_heads, causal_attention, merge_heads, and the column_linear and row_linear that "
            "it is given."),
        s.NO_GROUP, s.NARROW,
        Hint("heads interleaved", s.fact("is", "every"),
             "shards are contiguous: rank r has the heads r H/tp to (r+1) H/tp - 1, "
             "so that query head i finds its key/value head i // (H/K) on the same rank. "
             "chunk(tp)[rank] gives that."),
        Hint("a layer not sharded", s.fact("is", "whole"),
             "q, k and v are all sharded by heads, and so is out. With grouped-query attention "
             "too, each rank has K/tp of the key/value heads."),
        Hint("sharded on the wrong dim", s.fact("is", "dim"),
             "torch stores weights transposed, (out, in). The heads are the outputs of q, k and v, "
             "so these are sharded on dim 0; they are the inputs of out, so that one on dim 1."),
        Hint("another rank's heads", s.fact("is", "rank"),
             "rank r of the group has shard r, chunk(tp)[dist.get_rank(group)], of each of q, k, v "
             "and out."),
        Hint("no error", s.kind("no error"),
             "a size may divide where the heads do not: 4 ranks can share the columns of 6 heads "
             "evenly, one head and a half for each. Ask whether tp divides the number of heads, "
             "and that of key/value heads."),
        Hint("another error", s.kind("another error"),
             "raise ValueError with the numbers in it: `raise ValueError(f'{H} heads over {tp} "
             "ranks')`."),
        Hint("whole heads refused", s.kind("refused"),
             "here the group's ranks divide the heads, and the key/value heads, of which there may "
             "be fewer. Both numbers are out_features // head_dim, tp is "
             "dist.get_world_size(group)."),
        s.RETURNED_NONE.saying("forward ends with `return self.row_linear(...)`."),
        Hint("no list of layers", s.kind("no list"),
             "column_linear takes a list of all layers that read x, and returns a list."),
        Hint("a layer made anew", s.refused("dtype"),
             "a shard has the values of the unsharded layer, in its dtype: a new nn.Linear has "
             "random ones, in float32."),
        Hint("shapes do not fit", s.kind("raised", "form"),
             "on a rank q is H*d/tp wide, k and v K*d/tp, and so is what out takes in. split_heads "
             "and merge_heads work on however many heads there are; the width of one, head_dim, "
             "stays."),
        Hint("no parameters",
             lambda p: (p.kind == "held" and p.facts["got"] < p.facts["want"])
             or (p.kind == "no graph" and p.fact("of") not in ("x.grad", "y")),
             "a shard must be an nn.Parameter of this module, or of one inside it: otherwise no "
             "optimizer finds it."),
        s.NO_GRAPH.saying("detach() and .data cut the graph: pass x to column_linear as it is."),
        ways.two_at_once(CASES),
        Hint("another gradient", s.kind("value", of="x.grad"),
             "y is right. column_linear(x, [layers], group) is called once, and f, which is in it, "
             "sums the gradient of x over the ranks. Nothing else may sum it."),
        Hint("another result", s.kind("value"),
             "column_linear for q, k, v; split_heads; causal_attention; merge_heads; row_linear "
             "for out. Each rank's shard is a chunk of the weight, and of the bias of q, k and v; "
             "out's bias is replicated."),
        Hint("full weights are kept",
             lambda p: p.kind == "held" and (p.facts["got"] > p.facts["want"] or p.facts["hidden"]),
             "the unsharded attention, or a layer of it, is kept: keep only this rank's shards, or "
             "no memory is saved."),
        Hint("views of full weights", s.kind("held"),
             "a chunk is a view, which keeps the memory of the full weight alive; and out's bias, "
             "which is replicated, is still the caller's. clone() them."),
        Hint("the plain attention changed", s.kind("input"),
             "the caller's attention stays as it is: make parameters of your own."),
        Hint("x enters three times", s.both(s.kind("calls"),
            lambda p: len(p.facts["got"]) > len(p.facts["want"])),
             "q, k and v read the same x: call column_linear once with all three, and backward "
             "sends one all-reduce for them."),
        Hint("not the ones it was given", s.kind("calls", "another way"),
             "the caller chooses the linear functions: column_linear(x, [layers], group) and "
             "row_linear(x, layer, group). (A ColumnParallelLinear calls lib's, unless you pass "
             "it `column_linear`.)"),
        s.NOT_ALL_RANKS, s.NOT_KEPT, *s.ANYWHERE,
    ),
)  # fmt: skip
