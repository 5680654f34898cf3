"""Known mistakes of pipeline_report, each named after its cause."""

from mistakes import Mistake, edit

PACE = 'max(sum(forward[rank::p] + times["B"][rank::p]) for rank in range(p))'
MISTAKES = (
    Mistake("slowest stage", edit(PACE, "3 * max(forward)")),
    Mistake("neighbouring stages on a rank",
            edit(PACE, "3 * max(sum(forward[r * v : r * v + v]) for r in range(p))")),
    Mistake("mean of the ranks", edit(PACE, "3 * sum(forward) / p")),
    Mistake("fastest rank", edit("max(sum(forward", "min(sum(forward")),
    Mistake("forwards only", edit(PACE, "max(sum(forward[rank::p]) for rank in range(p))")),
    Mistake("first rank", edit(PACE, "3 * sum(forward[0::p])")),
    Mistake("backwards too short",
            edit("simulate(interleaved(p, m, v), times)",
                 'simulate(interleaved(p, m, v), {"F": forward, "B": forward})')),
    Mistake("formula", edit('"bubble": step.bubble', '"bubble": (p - 1) / (v * m + p - 1)')),
    Mistake("Megatron's convention", edit('"bubble": step.bubble', '"bubble": (p - 1) / (v * m)')),
    Mistake("idle over busy",
            edit('"bubble": step.bubble', '"bubble": step.bubble / (1 - step.bubble)')),
    Mistake("backward as long as forward", edit("2 * time for time", "time for time")),
    Mistake("first rank's bubble", edit('"bubble": step.bubble', '"bubble": step.bubbles[0]')),
    Mistake("slowest rank's bubble", edit('"bubble": step.bubble', '"bubble": min(step.bubbles)')),
    Mistake("p micro-batches in flight", edit("max(step.peak_kept)", "min(m, p)")),
    Mistake("the emptiest rank", edit("max(step.peak_kept)", "min(step.peak_kept)")),
    Mistake("first rank's memory, by Megatron's formula",
            edit("max(step.peak_kept)", "(v - 1) * p + 2 * (p - 1) + 1")),
    Mistake("all ranks together", edit("max(step.peak_kept)", "sum(step.peak_kept)")),
    Mistake("whole ranks in flight", edit("stage_gb * max", "v * stage_gb * max")),
    Mistake("MFU of the busy time", edit("rank_mfu * (1 - step.bubble)", "rank_mfu")),
    Mistake("MFU divided", edit("rank_mfu * (1 - step.bubble)", "rank_mfu / (1 - step.bubble)")),
    Mistake("the bubble's part", edit("rank_mfu * (1 - step.bubble)", "rank_mfu * step.bubble")),
    Mistake("subtracted", edit("rank_mfu * (1 - step.bubble)", "rank_mfu - step.bubble")),
    Mistake("Megatron's bubble in the MFU",
            edit("rank_mfu * (1 - step.bubble)", "rank_mfu * (1 - (p - 1) / (v * m))")),
)  # fmt: skip
