"""A paced GPT is the GPT, whatever the order of its mesh; it takes the time it is told; and one
axis crosses nodes."""

from functools import partial

import pytest
from hybrid_cases import Run, compare, single_process, train_each

from lib import launch, ledger
from lib.hybrid.mesh import axes_of
from lib.hybrid.paced import DoublingUpdate, paced_gpt, placed_steps
from lib.training.model import Shape

WAITS = {"forward": 2e-3, "backward": 4e-3}
PACED = {
    order: Run(
        {"ep": 1, "cp": 1} | dict.fromkeys(order.split(), 2),
        split=partial(paced_gpt, **WAITS),
        update=DoublingUpdate,
    )
    for order in ("pp dp tp", "dp pp tp", "tp pp dp")
}
TINY = Shape(vocab_size=16, seq_len=4, n_layers=2, hidden=16, n_heads=2)
COMPUTE, LINK, M = (8e-3, 16e-3), (1e-3, 1e-8), 2


def on_ranks():
    """What each order's ranks saw in training; the seconds of a step of each, in two nodes of 4."""
    seen = train_each(PACED, {})
    seconds = {}
    for order, run in PACED.items():
        ledger.mark(order)
        seconds |= placed_steps({order: (run.sizes, 4)}, TINY, 2 * M, 1, COMPUTE, LINK, steps=1)
        ledger.mark("")
    return seen, seconds


@pytest.mark.slow
def test_a_paced_gpt_is_the_gpt_takes_its_time_and_one_axis_crosses():
    results = launch.capture(on_ranks, nproc=8, timeout=300)
    for name, run in PACED.items():
        compare(run, [seen[name] for seen, _ in results], single_process(run.optimizer, run.shape))
        (least,) = results[0][1][name]
        assert least >= 0.99 * (M + 1) * sum(COMPUTE) / 2, name  # a layer on each stage, cut in two
        crossing = {
            axes_of([rank, entry.peer], run.sizes)
            for rank in range(8)
            for entry in results.ledger.section(name).of(rank)
            if entry.op == "send" and rank // 4 != entry.peer // 4
        }
        assert crossing == {(name.split()[0],)}
