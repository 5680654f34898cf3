"""Lab 6, section 2: norm_over_mesh(sets, mesh, all_reduce), on 8 ranks.

Each case asks for four norms, except the real step, which asks for the fourth alone. For the first
three, only the gradients of one list differ from 0, so a verdict can name the list whose squares
are not counted exactly once. The fourth is the norm of all gradients. They have already been
averaged along dp and over the ends, so ranks that share a parameter have equal gradients.
"""

from functools import partial

import torch.distributed as dist

from lib import hybrid
from lib.backend.torch_private import without_dispatch_modes as unseen
from lib.check.cases import form_of
from lib.check.lab6 import on_a_mesh as given
from lib.check.lab6.on_a_mesh import NAMES, REAL
from lib.check.shown import calls
from lib.check.tensors import draw
from lib.hybrid.mesh import axes_of

CASES = given.cases((2, 2, 2))  # first, because there a rank lacks both tp shards and pp stages
MOST = 3  # values over a group: one of each set
ALONE = {name: f"|g| of {name} gradients alone" for name in NAMES}
ALL, FORM, GRADIENTS = "|g|", "what it returns", "the gradients afterwards"
FEW, ALONG, BITS = "how much it sums", "along what it sums", "its bits"


def gradient(case, here, asked, name, i, shape):
    """The averaged gradient of a parameter, on the rank at these coordinates. It is zero where
    the script asks for the norm of another list alone."""
    stage, tp = here["pp"] * (name != "tied"), here["tp"] * (name != "replicated")
    seed = 1000 * NAMES.index(name) + 100 * stage + 10 * tp + i
    return draw(seed + 5 * case.again, *shape) * (asked in (ALONE[name], ALL))


def script(make, case, place, show):
    (mesh, _), show.allowed, show.part = place, None, case.rank(dist.get_rank())
    for asked in (ALL,) if case.what == REAL else (*ALONE.values(), ALL):
        by_hand = partial(gradient, case, mesh.here, asked)
        sets = given.sets_of(case, mesh, hybrid.average_over_mesh, by_hand)
        everything = given.listed(sets)
        show.begin()
        norm = show.run(make, sets, mesh, show.all_reduce)
        show(FORM, form_of(norm))
        show(asked, norm)
        shown_sums(case, show)
        show(GRADIENTS, {f"sets.{name}[{i}].grad": p.grad for name, i, p in everything})
        if show.wrong(FORM, asked):
            return
        show(BITS, differ(norm, show))


def shown_sums(case, show):
    """Show whether only a few values are summed along tp and pp, and none along another axis."""
    sums = given.sums(show.calls)
    told = f"summed {case.listed(sums)}; expected one to {MOST} values along tp and along pp"
    along = all(axes_of(ranks, case.sizes) in (("tp",), ("pp",)) for ranks in sums)
    show(FEW, told if any(n > MOST for n in sums.values()) else "")
    show(ALONG, "" if along else told)


def differ(norm, show):
    """The smallest and the largest of the ranks' norms in words; "" if all ranks agree."""
    with unseen():
        norms = sorted({one.item() for one in show.gathered(norm)})  # a nan equals no other norm
    return f"one rank returned {norms[0]!r}, another {norms[-1]!r}" if len(norms) > 1 else ""


MEASURE = given.measure(script, hybrid.norm_over_mesh, CASES)
EXERCISE = given.exercise(
    MEASURE,
    ("the norm of the whole model", 6, "5 meshes of 8 ranks; pp, dp, tp of 1 to 4",
     ((FORM, *ALONE.values(), ALL), given.by_hand(MEASURE))),
    ("as in a single process", 2, "a GPT's gradients on pp=2 dp=2 tp=2", FORM, ALL),
    ("only sums of squares are sent", 2, "one to three values along tp and along pp",
     FEW, ALONG, calls(MEASURE, nothing_else=False)),
    ("the same bits on every rank", 1, "or ranks would clip differently", BITS),
    ("gradients left alone", 1, "and so are parameters and lists", GRADIENTS),
    leaves_out={"memory": "only numbers are sent, which is a claim"},
)  # fmt: skip
