"""Lab 3, section 5: vocab_parallel_embedding and vocab_parallel_cross_entropy, at the two ends of
the model.

Unless only rank 0's words are used, the first call looks up every row of the table, two of them
twice, and every word is a target. The plain logits are so small that the loss is right even if the
largest logit is not subtracted. With large logits it has to be, because exp(1000) is inf and
exp(-1000) is 0. In the case "far apart" the ranks' largest logits differ so much for some tokens
that each rank has to subtract the largest logit of all ranks. It has four kinds of tokens:

    token   0, 4, 8      1, 5, 9        2, 6, 10                          3, 7, 11
    logits  about 1000   about -1000    one rank 1000, the others -1000   -1000 to 1000
"""

from functools import partial

import torch

from lib.check.cases import Setting
from lib.check.exercise import Bundle
from lib.check.lab3 import groups as g
from lib.check.shown import calls
from lib.check.tensors import draw
from lib.tensor_parallel import mappings, vocabulary

V, D = 12, 3
TOKENS = torch.tensor([[3, 0, 7, 11, 6, 2, 8], [5, 9, 1, 7, 10, 4, 0]], device="cpu")  # (B, T)
TARGETS = torch.tensor([[7, 0, 5, 11, 3, 8], [6, 2, 9, 1, 10, 4]], device="cpu")  # (B, T)
RANK_0S, HIGH, LOW, APART = "rank 0's words only", "logits near 1000", "near -1000", "far apart"
PLAIN = (*map(Setting, g.GROUPS), *(Setting(g.ALL, what=w) for w in (RANK_0S, g.AT_ONCE)))
LARGE = tuple(Setting(m, what=w) for m, w in zip(g.GROUPS, (HIGH, LOW, APART), strict=False))


def _of(ids, case, N, of):
    """The ids of this call: (B, T), or (B, T-1) in the second of two calls at once."""
    some = (ids + case.again) % (V // N if case.what == RANK_0S else V)
    return some[:, bool(of) :]


def _seed(case, N, of):
    return 100 * N + 10 * sum(case.members) + 5 * bool(of) + case.again


def embedding(make, case, groups, show):
    to_all, ys = partial(mappings.reduce_from_group, all_reduce=show.all_reduce), []
    show.begin("forward")
    for group, N, rank, of in g.calls(show, groups):
        tokens = show.give(f"tokens{of}", _of(TOKENS, case, N, of))
        table = draw(_seed(case, N, of), V, D + bool(of))
        weight = show.give(f"weight{of}", table.chunk(N)[rank], learns=True)
        ys.append(show.run(make, tokens, weight, group, to_all))
        show("vectors", ys[-1])
    if show.wrong("vectors"):
        return
    yield
    show.begin("backward")
    show.backward(*ys)


def _logits(case, N, of):
    logits = draw(_seed(case, N, of), *TARGETS.shape, V)[:, bool(of) :]
    if case.what == APART:
        of_token = logits.flatten(0, 1)
        of_token[0::4] += 1000
        of_token[1::4] -= 1000
        of_token[2::4] -= 1000
        for token, of_rank in enumerate(of_token[2::4].view(-1, N, V // N)):
            of_rank[token % N] += 2000
        of_token[3::4] *= 1000 / of_token[3::4].abs().max()
    return logits + {HIGH: 1000, LOW: -1000}.get(case.what, 0)


def cross_entropy(make, case, groups, show):
    sent, losses = lambda: sum(call.elements for call in show.calls), []
    show.begin("forward")
    for group, N, rank, of in g.calls(show, groups):
        mine = _logits(case, N, of).chunk(N, -1)[rank]
        logits = show.give(f"logits{of}", mine, learns=True)
        targets = show.give(f"targets{of}", _of(TARGETS, case, N, of))
        losses.append(show.run(make, logits, targets, group, all_reduce=show.all_reduce))
        show("the loss", losses[-1])
    three = f"{case.name}: that is more than three elements for each of B*T tokens"
    show("elements all-reduced in forward", sent(), at_most=True, beside=three)
    if show.wrong("the loss"):
        return
    yield
    show.begin("backward")
    show.backward(*losses)
    show("elements all-reduced in backward", sent(), at_most=True)


def _exercise(measure, *rows):
    leaves_out = g.FUNCTION | {"memory": "what is sent is counted; what backward keeps is free"}
    return g.exercise(measure, ("vocabulary",), *rows, leaves_out=leaves_out)


FREE = {"alive": "what backward keeps is free"}
LOSS = g.measure(
    cross_entropy, vocabulary.vocab_parallel_cross_entropy, PLAIN + LARGE,
    excused=FREE | {"bfloat16": "lib's loss of 16-bit logits is float32"},
)  # fmt: skip
SMALL = [case for case in LOSS.runs() if case not in LARGE]
EMBEDDING = _exercise(
    g.measure(embedding, vocabulary.vocab_parallel_embedding, PLAIN, excused=FREE),
    ("each token's vector", 3, f"{g.GROUPS_SAY}; each rank's first and last row", "vectors"),
    ("each row's gradient", 2, "of its own tokens, twice for a token that is there twice",
     "weight", "weight, the pair", "graph"),
    ("one g, of (B, T, D)", 2, "backward sends nothing", g.CALLS),
    ("tokens and weight left alone", 1, "", "arguments"),
)  # fmt: skip
CROSS_ENTROPY = _exercise(
    LOSS,
    ("the mean of -log p(target)", 4, f"{g.GROUPS_SAY}; every target", ("the loss", SMALL)),
    ("large logits", 3, "near 1000, near -1000, and far apart", ("the loss", LARGE)),
    ("the gradient of the logits", 2, "p, less 1 at the target, over BT",
     "logits", "logits, the pair", "graph"),
    ("three numbers per token", 4, "whatever V is; backward nothing",
     "elements all-reduced in forward", "elements all-reduced in backward",
     calls(LOSS, nothing_else=False)),
    ("logits and targets left alone", 1, "", "arguments"),
)  # fmt: skip
EXERCISE = Bundle("vocabulary", (EMBEDDING, CROSS_ENTROPY))
