"""Known mistakes of ring_attention, each named after its cause."""

from mistakes import Mistake, edit

FORTH, BACK = (
    f"for owner, (k_j, v_j) in ring_shift(torch.stack([k, v]), {shapes}, group):"
    for shapes in ("_shapes(k, layout)", "shapes")
)
NOTED = "\n            ctx.came[owner] = owner != rank and torch.stack([k_j, v_j])"
PLACES = "a, b, *places = _block(layout[rank], layout[owner], causal)"
SKIPPED = "\n            b *= owner <= rank or not causal"  # of a rank of a higher number
MISTAKES = (
    Mistake("its own part twice",
            edit("                continue  # stays here", "                pass  # stays here")),
    Mistake("gradients of k and v exchanged", edit("d_k, d_v = own", "d_v, d_k = own")),
    Mistake("gradients of k and v exchanged",
            edit("torch.stack(d_kv_j)", "torch.stack(d_kv_j[:: 1 if owner == rank else -1])")),
    Mistake("all keys kept", edit(FORTH, f"ctx.came = dict()\n        {FORTH}{NOTED}")
            .then(BACK, "for owner, (k_j, v_j) in (ctx.came | {rank: (k, v)}).items():")),
    Mistake("the mask", edit("if not causal:", "if False:")),
    Mistake("the mask", edit("if not causal:", "if True:")),
    Mistake("whose keys these are", edit(PLACES, f"{PLACES}{SKIPPED}")),
    Mistake("gradients of keys and values", edit("d_kv += passing.arrived()",
        "d_kv += passing.arrived() * (b > 0)")),
    Mistake("the last part alone", edit("d_kv += passing.arrived()", "passing.arrived()")),
    Mistake("d_q not added up", edit("d_q[..., a:, :] += d_q_j", "d_q[..., a:, :] = d_q_j")),
)  # fmt: skip
