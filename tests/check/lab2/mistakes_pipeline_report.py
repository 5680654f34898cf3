"""Known mistakes of pipeline_report, each named after its cause."""

from mistakes import Mistake, edit

PACE = 'max(sum(forward[rank::p] + times["B"][rank::p]) for rank in range(p))'
MISTAKES = (
    Mistake("slowest stage", edit(PACE, "3 * max(forward)"),
            "that is the slowest stage. A rank runs all of its v stages for each micro-batch, so "
            "add them up before you take the largest."),
    Mistake("neighbouring stages on a rank",
            edit(PACE, "3 * max(sum(forward[r * v : r * v + v]) for r in range(p))"),
            "you give each rank v stages that follow each other. Interleaved stages go round the "
            "ranks: rank r has r, r + p, r + 2p, ..."),
    Mistake("mean of the ranks",
            edit(PACE, "3 * sum(forward) / p"),
            "that is the mean of the ranks. The pipeline moves at the pace of the slowest one."),
    Mistake("fastest rank", edit("max(sum(forward", "min(sum(forward"),
            "that is the fastest rank. The others wait for the slowest one."),
    Mistake("forwards only",
            edit(PACE, "max(sum(forward[rank::p]) for rank in range(p))"),
            "that is the forward pass alone. A micro-batch also goes backward through the rank's "
            "stages, which takes twice as long."),
    Mistake("first rank", edit(PACE, "3 * sum(forward[0::p])"),
            "that is the first rank, which has the embedding. Take the slowest of all ranks."),
    Mistake("backwards too short",
            edit("simulate(interleaved(p, m, v), times)",
                 'simulate(interleaved(p, m, v), {"F": forward, "B": forward})'),
            "the simulation has backwards that take as long as their forwards. They take twice as "
            "long, and where stages differ the bubble depends on it."),
    Mistake("formula", edit('"bubble": step.bubble', '"bubble": (p - 1) / (v * m + p - 1)'),
            "the formula holds for stages that are equally long, and these are not: take the "
            "bubble of the simulation."),
    Mistake("Megatron's convention", edit('"bubble": step.bubble', '"bubble": (p - 1) / (v * m)'),
            "that is Megatron's ratio, idle time over computing time, for equal stages. Here the "
            "bubble is the idle share of all time, as `simulate` gives it."),
    Mistake("idle over busy", edit('"bubble": step.bubble',
                                   '"bubble": step.bubble / (1 - step.bubble)'),
            "that is idle time over computing time, Megatron's convention. Here the bubble is the "
            "idle share of all time."),
    Mistake("backward as long as forward", edit("2 * time for time", "time for time"),
            "the pace is too low: a backward takes twice as long as its forward."),
    Mistake("first rank's bubble", edit('"bubble": step.bubble', '"bubble": step.bubbles[0]'),
            "that is the first rank's. The bubble is the share of all ranks' time."),
    Mistake("slowest rank's bubble", edit('"bubble": step.bubble', '"bubble": min(step.bubbles)'),
            "that is the busiest rank's. The bubble is the share of all ranks' time."),
    Mistake("p micro-batches in flight", edit("max(step.peak_kept)", "min(m, p)"),
            "that is 1F1B. Interleaved, a rank keeps more: (v-1)p + 2(p-1-i) + 1 micro-batches x "
            "stages, or all that there are."),
    Mistake("the emptiest rank", edit("max(step.peak_kept)", "min(step.peak_kept)"),
            "that is the rank that keeps least. A plan has to fit on the fullest one."),
    Mistake("first rank's memory, by Megatron's formula",
            edit("max(step.peak_kept)", "(v - 1) * p + 2 * (p - 1) + 1"),
            "the formula holds for m large enough. No rank keeps more than the v m micro-batches x "
            "stages that it has."),
    Mistake("all ranks together", edit("max(step.peak_kept)", "sum(step.peak_kept)"),
            "that is the memory of all ranks together. Each rank has its own."),
    Mistake("whole ranks in flight", edit("stage_gb * max", "v * stage_gb * max"),
            "peak_kept counts micro-batches x stages already, so v is in it."),
    Mistake("MFU of the busy time", edit("rank_mfu * (1 - step.bubble)", "rank_mfu"),
            "while a rank is idle it computes nothing, but the time passes: multiply by the share "
            "of time that is not idle."),
    Mistake("MFU divided", edit("rank_mfu * (1 - step.bubble)", "rank_mfu / (1 - step.bubble)"),
            "that goes from a step's MFU to the ranks'. Idle time makes the MFU smaller."),
    Mistake("the bubble's part", edit("rank_mfu * (1 - step.bubble)", "rank_mfu * step.bubble"),
            "the bubble is the share that is lost."),
    Mistake("subtracted", edit("rank_mfu * (1 - step.bubble)", "rank_mfu - step.bubble"),
            "the bubble is a share of the time, so multiply by what it leaves."),
    Mistake("Megatron's bubble in the MFU",
            edit("rank_mfu * (1 - step.bubble)", "rank_mfu * (1 - (p - 1) / (v * m))"),
            "1 minus the bubble is the busy share only if the bubble is a share of all time. "
            "Megatron's ratio is one of the computing time."),
)  # fmt: skip
