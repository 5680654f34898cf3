"""Which parameters a rank has, and how many ranks have copies of them. The models of memory and of
the gradient exchange use the same table.

    part     parameters                                              divided by  exchanged over
    cut      attention; the MLP, or an MoE's shared matrices         tp  pp      dp cp
    whole    norms, router, latent attention's thin first matrices   pp          dp cp
    experts  the E experts of each MoE layer                         ep  pp      dp cp tp / ep
    ends     the embedding on the first stage, the head on the last  tp          dp cp

The whole parameters are replicated over tp too, but each tp rank exchanges gradients only with the
ranks of its own tp coordinate. Ranks with copies of the same parameters exchange gradients, and
ZeRO shards over them: the optimizer state from stage 1, gradients from stage 2, weights at stage 3.
Experts are distributed over ranks that the rest of the layer uses as data and tensor ranks, and are
not split over tp (Megatron-Core with an expert tensor parallelism of 1).

Sources: ZeRO (Rajbhandari et al. 2020), section 5; Megatron-Core's MoE README, "parallel folding",
for experts' ranks.
"""

from typing import NamedTuple


class Part(NamedTuple):
    """Parameters on one rank, and over how many ranks their gradients are exchanged."""

    name: str
    parameters: float
    alike: int


def expert_ranks(plan):
    """How many ranks have copies of the same experts."""
    return max(1, plan.dp * plan.cp * plan.tp // plan.ep)


def layer_parts(model, plan):
    """[Part] of one layer on one rank; if the model has experts, of a layer with experts."""
    other = model.shared_parameters if model.experts else model.expert_parameters
    return _parts(model, plan, 1, other, 1 if model.experts else 0)


def stage_parts(model, plan, stage, layers):
    """[Part] of a pipeline stage on one rank. layers: [layers of each stage]."""
    n, first, last = layers[stage], stage == 0, stage == plan.pp - 1
    plain = model.plain_on(layers)[stage]
    if not model.experts:
        parts = _parts(model, plan, n, n * model.expert_parameters, 0)
    else:
        mlps = plain * model.dense_mlp_parameters + (n - plain) * model.shared_parameters
        parts = _parts(model, plan, n, mlps, n - plain)
    embeddings = first + (last and not (model.tied and plan.pp == 1))
    ends = embeddings * model.embedding_parameters / plan.tp
    return [*parts, Part("ends", ends, plan.dp * plan.cp)]


def _parts(model, plan, n, mlps, mixtures):
    """The first three rows of the table. n: layers; mlps: parameters of all MLPs that are not
    experts; mixtures: layers with experts."""
    ranks, router = plan.dp * plan.cp, model.hidden * model.experts * mixtures
    whole = n * model.whole_parameters + router
    cut = n * (model.attention_parameters - model.whole_parameters) + mlps - router
    held = mixtures * model.experts * model.expert_parameters / plan.ep
    return [
        Part("cut", cut / plan.tp, ranks),
        Part("whole", whole, ranks),
        Part("experts", held, expert_ranks(plan)),
    ]
