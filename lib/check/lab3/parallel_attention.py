"""Lab 3, section 4: ParallelAttention(attention, group, column_linear, row_linear), a rank's heads.

The unsharded attention has H = 4 tp query heads of width 2 and K = H or 2 tp key/value heads, so
each rank has 4 query heads and 4 or 2 key/value heads. The two cases of UNEVEN have to be refused.

An answer may choose the names of its parameters and may fuse several layers into one. The check
therefore sorts the elements of the parameters by their values, and those of the gradients in the
same order, before it compares them.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from lib.check.cases import Setting, form_of
from lib.check.lab3 import groups as g
from lib.check.tensors import draw
from lib.tensor_parallel import block, linear, mappings
from lib.training.model import Attention, Shape

HEAD_DIM, B, T = 2, 2, 3
FULL, KV_HEADS = "as many k/v heads", "2 key/value heads"
# tp = 4 divides the widths of all layers, but not the 6 heads, nor the 2 key/value heads
UNEVEN = {"6 heads": (6, 6), KV_HEADS: (8, 2)}
CASES = (
    Setting(g.GROUPS[0], what=FULL), *map(Setting, g.GROUPS),
    *(Setting(g.ALL, what=what) for what in (FULL, g.AT_ONCE, *UNEVEN)),
)  # fmt: skip
SHARDS = (  # what a wrong module may have instead of its shard
    "its shard among all ranks", "the full weight", "every tp-th head",
    "its shard along the other dim", "another rank's shard", "no element of its shard",
)  # fmt: skip
ELEMENTS, GRADIENTS = "elements of the parameters", "the parameters' gradients"
NO_GRADIENT, SHARED = "parameters without a gradient", "parameters in shared memory"


def _attention(case, N, x):
    """The unsharded attention, the same on all ranks, with values of about 1/4."""
    heads, kv_heads = UNEVEN.get(case.what, (4 * N, 4 * N if case.what == FULL else 2 * N))
    made = Attention(Shape(2, T, 1, HEAD_DIM * heads, heads, kv_heads))
    for i, parameter in enumerate(made.parameters()):
        parameter.data = draw(i, *parameter.shape).to(x) / 4
    return made


def _linears(show):
    """column_linear and row_linear as the answer gets them."""
    enter, leave = (
        partial(mapping, all_reduce=show.all_reduce)
        for mapping in (mappings.copy_to_group, mappings.reduce_from_group)
    )
    return (
        partial(linear.column_parallel, input_mapping=enter),
        partial(linear.row_parallel, output_mapping=leave),
    )


def _instead(attention, module, N, rank):
    """{each of SHARDS: a sentence that names the first layer for which the module has this instead
    of its own shard, or ""}"""
    found, parameters = dict.fromkeys(SHARDS, ""), [*module.parameters()]
    has = lambda t: any(p.shape == t.shape and p.equal(t) for p in parameters)
    for name in ("q", "k", "v", "out"):
        full, dim = getattr(attention, name).weight.detach(), int(name == "out")
        mine, *others = full.chunk(N, dim)[rank:] + full.chunk(N, dim)[:rank]
        by_heads = full.unflatten(dim, (-1, N, HEAD_DIM))
        wrong = [  # in the order of SHARDS
            has(full.chunk(dist.get_world_size(), dim)[dist.get_rank()]),
            has(full),
            has(by_heads.select(dim + 1, rank).flatten(dim, dim + 1)),
            has(full.chunk(N, 1 - dim)[rank]),
            any(map(has, others)),
            not any(torch.isin(p.detach(), mine).any() for p in parameters),
        ]
        which = next((shard for shard, is_so in zip(SHARDS, wrong, strict=True) if is_so), "")
        if which and not has(mine) and not found[which]:
            found[which] = f"of {name}.weight the module has {which}"
    return found


def _in_order(x, parameters, of=lambda p: p.detach()):
    """The elements of of(p) for all parameters p, concatenated and sorted by the parameters'
    values."""
    flat = lambda tensors: torch.cat([x.new_empty(0), *(t.flatten() for t in tensors)])
    return flat(map(of, parameters))[flat(p.detach() for p in parameters).argsort()]


def _show_parameters(show, attention, module, x):
    show(ELEMENTS, sum(p.numel() for p in module.parameters()), at_most=True)
    show("parameters", _in_order(x, [*module.parameters()]))
    places = {p.untyped_storage().data_ptr() for p in attention.parameters()}
    shared = [n for n, p in module.named_parameters() if p.untyped_storage().data_ptr() in places]
    show(SHARED, f"{shared[0]} is in the memory of the unsharded attention" if shared else "")
    show("the unsharded attention", attention.named_parameters())


def script(make, case, groups, show):
    jobs = []
    show.begin("forward")
    for group, N, rank, of in g.calls(show, groups):
        heads = UNEVEN.get(case.what, [4 * N])[0]
        x = draw(10 * N + 5 * bool(of) + case.again, B + bool(of), T, HEAD_DIM * heads) / 2
        x = show.give(f"x{of}", x, learns=True)
        attention = _attention(case, N, x)
        if case.what in UNEVEN:
            show.refused(make, attention, group, *_linears(show))
            return
        module = show.run(make, attention, group, *_linears(show))
        is_module = isinstance(module, nn.Module)
        show("a module", "" if is_module else f"got {form_of(module)}, not an nn.Module")
        if show.wrong("a module"):
            return
        for which, words in _instead(_attention(case, N, x), module, N, rank).items():
            show(which, words)
        _show_parameters(show, attention, module, x)
        jobs.append((module, x))
    if show.wrong(*SHARDS):
        return
    attention = None
    yield
    ys = []
    for module, x in jobs:
        ys.append(show.run(module, x))
        show("y", ys[-1])
    if show.wrong("y"):
        return
    show.begin("backward")
    show.backward(*ys)
    if show.wrong(ELEMENTS, "parameters"):
        return
    for module, x in jobs:
        none = [name for name, p in module.named_parameters() if p.grad is None]
        show(NO_GRADIENT, f"{', '.join(none)} got no gradient" if none else "")
        of = lambda p: torch.zeros_like(p) if p.grad is None else p.grad
        show(GRADIENTS, _in_order(x, [*module.parameters()], of))


MEASURE = g.measure(
    script, block.ParallelAttention, CASES, builds=(block.__name__,),
    excused={
        "bfloat16": "sums of products may be rounded once or twice",
        "generators": "a layer that is made before its values are copied draws some",
    },
    slack={"alive": 256},  # a small buffer; a full weight has at least 512 bytes more than a shard
)  # fmt: skip
EXERCISE = g.exercise(
    MEASURE, (),
    ("the plain attention's output", 5, f"{g.GROUPS_SAY}; grouped-query",
     "a module", *SHARDS, "y"),
    ("its gradients", 4, "of x, and of the rank's parts",
     "x", "x, the pair", NO_GRADIENT, GRADIENTS,
     ("graph", [case for case in MEASURE.runs() if case.what not in UNEVEN])),
    ("a rank's heads only", 3, "parameters: all but the last bias divided by tp",
     ELEMENTS, "parameters", SHARED, "the unsharded attention", "alive by 0",
     "alive at the end", "arguments"),
    ("one all-reduce each way", 2, "by the given column_linear and row_linear", g.CALLS),
    ("whole heads, or a ValueError", 2, "6 heads, 2 key/value heads on 4 ranks",
     "the error raised"),
    may_call=(*g.MAY_CALL, "linear.column_parallel", "linear.row_parallel", "linear.forward"),
    leaves_out=g.FUNCTION | {
        "empty rank": "every rank has heads, and every batch tokens",
        "attributes": "later cells read none of it",
    },
)  # fmt: skip
