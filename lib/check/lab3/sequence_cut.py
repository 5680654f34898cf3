"""Attention over a sequence that is sharded over the ranks: the cases and the script of
ring_attention and ulysses_attention.

    q (B, H, t, d), k and v (B, K, t, d)  of this rank's t tokens, with the strides of split_heads
    out (B, H, t, d)                      sharded like q; its gradient differs from rank to rank

The layout is zigzag if attention is causal, and contiguous otherwise. In one causal case the ranks
have contiguous blocks in a shuffled order, so that some ranks' queries see none of another rank's
keys. When two calls are in flight at once, the second has half the tokens and half
the heads.
"""

from dataclasses import dataclass, replace

from lib.check.cases import Setting
from lib.check.lab3 import groups as g
from lib.check.tensors import draw
from lib.tensor_parallel.layouts import contiguous, zigzag

B, D = 2, 2
FULL, CAUSAL, BACKWARD = "full", "causal", "backward"
SHUFFLED = "causal, the blocks in another order"
SAY = "1, 2, 3, 4 ranks, a subgroup; 4 heads on 4, 2, 1"


@dataclass(frozen=True)
class Cut(Setting):
    """T tokens, sharded over the case's ranks, with H query heads and K key/value heads. n: the
    number of elements in the k and v of all ranks together."""

    T: int = 0
    H: int = 0
    K: int = 0
    causal: bool = True


def _cut(members, T, H, K, causal=True, what=""):
    heads = f"{T} tokens, {H} heads{f' on {K}' if K < H else ''}"
    what = what or f"{CAUSAL if causal else FULL}, {heads}"
    return Cut(members, n=2 * B * K * T * D, what=what, T=T, H=H, K=K, causal=causal)


TWO, THREE, FOUR, SOME, ONE = g.GROUPS
WHOLE = _cut(FOUR, 16, 4, 4, causal=False)
PLAIN = (
    _cut(TWO, 8, 4, 4, causal=False), _cut(TWO, 8, 4, 2), _cut(FOUR, 16, 4, 2), WHOLE,
    _cut(FOUR, 8, 4, 1), _cut(FOUR, 8, 4, 4, what=SHUFFLED), _cut(THREE, 13, 6, 3),
    _cut(SOME, 8, 4, 2),
)  # fmt: skip
CASES = (*PLAIN, _cut(FOUR, 16, 8, 4, what=g.AT_ONCE), _cut(ONE, 4, 2, 1))


def script(make, case, groups, show, section=False, **ways):
    """section: whether backward has a section of its own in the ranks' logs. ways: the collectives
    that the answer is given."""
    losses = []
    show.begin("forward")
    for group, N, rank, of in g.calls(show, groups):
        T, H, K = (size // (1 + bool(of)) for size in (case.T, case.H, case.K))
        layout = zigzag(T, N) if case.causal else contiguous(T, N)
        layout = [contiguous(T, N)[i] for i in (1, 3, 0, 2)] if case.what == SHUFFLED else layout
        seed = 1000 * T + 100 * N + 10 * K + 5 * case.again
        given = []
        for i, (name, heads) in enumerate({"q": H, "k": K, "v": K}.items()):
            mine = draw(seed + i, B, T, heads, D)[:, layout[rank]]
            given.append(show.give(f"{name}{of}", mine.transpose(1, 2), learns=True))
        out = show.run(make, *given, layout, group=group, causal=case.causal, **ways)
        show("out", out)
        if show.wrong("out"):
            return
        by_token = out.transpose(1, 2)
        losses.append((by_token * draw(seed + 10 * rank + 3, *by_token.shape).to(out.dtype)).sum())
    del given, out, by_token
    yield
    show.begin(BACKWARD)
    show.backward(*losses, section=section)


def measure(reference, script, excused=None, **options):
    excused = {"bfloat16": "sums are taken in another order"} | (excused or {})
    together = PLAIN[1], replace(PLAIN[1], again=1)
    options |= {"together": together, "excused": excused}
    return g.measure(script, reference, CASES, **options)


GRADIENTS = [f"{name}{of}" for name in "qkv" for of in ("", ", the pair")]
LEAVES_OUT = g.FUNCTION | {"empty rank": "in every layout each rank has a token"}
