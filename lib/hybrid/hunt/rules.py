"""The rules of a hybrid step, and the eight mistakes of the hunt. A rule says along which axes of
the mesh ranks have different inputs, or sum, count or average something.

    what                     along                    because
    dropout masks differ     data, and tp in SP       ranks hold other rows, or other tokens of them
    rows differ              data                     a rank trains on its own
    tokens are counted       data                     the loss is a mean over all real tokens
    tied gradients are       pp, its ends             two uses of one matrix
      summed
    LayerNorms' are summed   tp in SP                 each rank saw its tokens alone
    dense ones are averaged  data                     each rank has a loss of its own
    experts' are divided     ep                       their sum over ep came with the tokens
    squares are summed       tp, ep, pp               each rank has a part of the gradient

"Data" stands for the axes dp and ep, and "SP" for sequence parallelism. The dense jobs use it; in
jobs with a mixture of experts the tp ranks have the same activations.

A mistake breaks one of these rules in some step and in all later ones. Nearly always an axis is
missing; in "mean over the wrong group", gradients may be averaged along tp instead.
"""

from typing import NamedTuple

JOBS, STEPS, MAX_NORM, LR = 10, 5, 0.1, 1.0
# the kinds of evidence, in the order in which a step produces them
KINDS = ("input", "activation", "loss", "gradient", "norm", "update")
HEALTHY = "healthy"
DATA = ("dp", "ep")
MISTAKES = {  # name: what is wrong, along the finding's axis
    "one dropout seed": "ranks along the axis use the same mask for different activations",
    "mean over the wrong group": "gradients are averaged over another group instead of along the "
    "axis",
    "tied embedding summed once": "the gradients of its two uses, at both ends of the axis, are "
    "not added",
    "LayerNorm not summed": "its gradients, each from a rank's own tokens, are not summed along "
    "the axis",
    "the same data": "ranks along the axis read the same rows",
    "local tokens": "the loss is a mean over a rank's own tokens, which are not counted along the "
    "axis",
    "local norm": "gradients are clipped by a norm whose squares are not summed along the axis",
    "experts averaged over dp": "experts' gradients, which are sums along the axis, are divided "
    "only by the size of dp",
}


class Finding(NamedTuple):
    """What is wrong with a job.

    mistake: a name in MISTAKES. axis: "pp", "dp", "ep" or "tp", the axis along which ranks should
    have summed, counted, averaged, divided or differed, and did not. step (from 0) and evidence
    (one of KINDS): the first in which a rank held anything other than the single process did.
    """

    mistake: str
    axis: str
    step: int
    evidence: str


class Setup(NamedTuple):
    """The mesh and model of a job. sizes: {axis: ranks}, 4 ranks in all. mixture: True for a model
    with experts; otherwise it is dense and uses sequence parallelism."""

    sizes: dict
    mixture: bool
    seed: int  # of weights, rows and masks


class Rules(NamedTuple):
    """For each line of the table above, the axes along which it is done. Tokens and squares have
    two fields each: one for what training uses, and one for what the job reports."""

    masks: tuple
    rows: tuple
    counted: tuple  # for backward
    reported_tokens: tuple  # for the loss that is reported
    tied: tuple
    norms: tuple
    mean: tuple
    experts: tuple
    squares: tuple  # for the norm that clips
    reported_norm: tuple


def right(setup):
    """The Rules of a job without a mistake."""
    tokens = () if setup.mixture else ("tp",)
    squares = ("tp", "ep", "pp")
    return Rules(
        (*DATA, *tokens), DATA, DATA, DATA, ("pp",), tokens, DATA, ("ep",), squares, squares
    )
