"""The rows as a table: one line per side and stage, next to the formulas.

    bytes      per parameter; "formula" is lib.cost.zero's: what the model state alone needs in fp32
    sent       by a rank in a step, in units of (N-1)/N psi, with 1 and 2 micro-batches
    off        the largest distance of a loss from one process's

After backward the mean is there. At stage 1, whose formula has full gradients, a rank keeps only
its shard by then.
"""

from lib.cost.zero import rank_state, sent_elements
from lib.demo.beside.job import SHAPE
from lib.training.model import GPT

HEAD = (
    f"{'stage':<7}{'':<19}{'loss':>10}{'off':>9}{'backward':>11}{'step':>8}{'k = 1':>9}{'k = 2':>8}"
)


def table(rows):
    """The lines to print. rows: one process's first, and those of all sides on one
    number of ranks."""
    psi, (alone, *rows) = GPT(SHAPE).num_parameters(), rows
    N = rows[0].N
    sent = {(row.who, row.stage, row.k): row.sent / ((N - 1) / N * psi) for row in rows}
    lines = [
        f"{N} ranks, psi = {psi:,} parameters in fp32; one process: loss {alone.losses[0]:.4f}, "
        f"{', '.join(f'{loss:.6f}' for loss in alone.losses[1:])}",
        f"{'':<45}{'bytes per parameter after':>19}{'sent, (N-1)/N psi':>19}",
        HEAD,
    ]
    for stage in range(4):
        state = rank_state(1, stage, N, "fp32")
        expected = [
            sent_elements(psi, stage, N, k, root_elements() if stage == 3 else 0) for k in (1, 2)
        ]
        volumes = [f"{e / ((N - 1) / N * psi):.2f}" for e in expected]
        lines.append(
            line(stage, "formula", "", "", state.total, state.total - state.gradient, *volumes)
        )
        for row in rows:
            if row.stage == stage and row.k == 1:
                off = max(abs(a - b) for a, b in zip(row.losses, alone.losses, strict=True))
                kept = [n / psi for n in (row.after_backward, row.after_step)]
                volumes = [f"{sent[row.who, stage, k]:.2f}" for k in (1, 2)]
                lines.append(
                    line("", row.who, f"{row.losses[-1]:.6f}", f"{off:.0e}", *kept, *volumes)
                )
    return lines


def line(stage, who, loss, off, backward, step, one, two):
    """One line of the table; the columns of HEAD."""
    return f"{stage!s:<7}{who:<19}{loss:>10}{off:>9}{backward:>11.2f}{step:>8.2f}{one:>9}{two:>8}"


def root_elements():
    """Parameters that belong to no block: the root unit of stage 3, gathered once."""
    model = GPT(SHAPE)
    return model.num_parameters() - sum(p.numel() for p in model.blocks.parameters())
