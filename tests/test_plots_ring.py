"""The picture of an all-reduce is the picture of *this* all-reduce: a star is drawn as a star, a
mistake in red."""

import re
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from lib import collectives, launch, plots
from lib.collectives import p2p
from lib.collectives.contents import traced
from lib.plots.chunks import kind, states_after
from lib.plots.messages import rounds


def textbook_ring(tensor, adding_rounds=None):
    """In round s of the first pass, rank r sends chunk r - s."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = tensor.tensor_split(world_size)
    for s in range(world_size - 1 if adding_rounds is None else adding_rounds):
        chunks[(rank - s - 1) % world_size].add_(
            p2p.send_recv(chunks[(rank - s) % world_size], right, left)
        )
    for s in range(world_size - 1):
        chunks[(rank - s) % world_size].copy_(
            p2p.send_recv(chunks[(rank - s + 1) % world_size], right, left)
        )


def a_round_short(tensor):
    textbook_ring(tensor, adding_rounds=dist.get_world_size() - 2)


def whole_tensors(tensor):
    """A "ring" that passes the whole tensor on, every round."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    passed = tensor.clone()
    for _ in range(world_size - 1):
        passed = p2p.send_recv(passed, (rank + 1) % world_size, (rank - 1) % world_size)
        tensor += passed


def twice(tensor):
    """Each rank's own values go in again."""
    own = tensor.clone()
    collectives.ring_all_reduce(tensor)
    tensor += own


RUNS = {
    "ring": textbook_ring,
    "lib's ring": collectives.ring_all_reduce,
    "star": collectives.star_all_reduce,
    "tree": collectives.tree_all_reduce,
    "halving-doubling": collectives.halving_doubling_all_reduce,
    "a round short": a_round_short,
    "whole tensors": whole_tensors,
    "twice": twice,
}
CLAIMS = {
    "ring": "3 rounds add, 3 pass on; every rank sends 1.5 vectors",
    "lib's ring": "3 rounds add, 3 pass on; every rank sends 1.5 vectors",
    "star": "1 round adds, 1 passes on; rank 0 sends 3 vectors, rank 1 only 1",
    "tree": "2 rounds add, 2 pass on; rank 0 sends 2 vectors, rank 2 only 1",
    "halving-doubling": "2 rounds add, 2 pass on; every rank sends 1.5 vectors",
    "a round short": "Not an all-reduce: rank 0's chunk 0 lacks the values of rank 0, 1, 2",
    "whole tensors": "3 rounds add; every rank sends 3 vectors",
    "twice": "Not an all-reduce: rank 0's chunk 0 has rank 0's values 2 times",
}


@pytest.fixture(scope="module")
def results():
    return {name: launch.capture(traced, fn, nproc=4) for name, fn in RUNS.items()}


@pytest.fixture(scope="module")
def drawings(results):
    return {name: plots.ring(results[name]) for name in RUNS}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_figure_says_what_this_run_did(results, drawings, name):
    drawing = drawings[name]
    assert CLAIMS[name] in drawing.alt
    assert drawing.png == plots.ring(results[name]).png
    assert drawing.width <= 8 and drawing.height <= 4  # inches


def test_another_algorithm_is_another_figure(drawings):
    assert len({drawing.png for drawing in drawings.values()}) == len(RUNS)


def test_another_run_of_the_same_function_is_the_same_figure(drawings):
    assert plots.ring(launch.capture(traced, textbook_ring, nproc=4)).png == drawings["ring"].png


def totals(results, name):
    panels = rounds(results[name].ledger.entries)
    states, arrived = states_after(results[name], panels)
    return [[[sum(counts) for counts in chunks] for chunks in state] for state in states], arrived


def test_the_ring_deepens_one_chunk_per_rank_and_round_then_passes_it_on(results):
    states, arrived = totals(results, "ring")
    assert states[0] == [[1, 1, 1, 2], [2, 1, 1, 1], [1, 2, 1, 1], [1, 1, 2, 1]]
    assert states[2] == [[1, 4, 3, 2], [2, 1, 4, 3], [3, 2, 1, 4], [4, 3, 2, 1]]
    assert states[5] == [[4] * 4] * 4
    for number, came in enumerate(arrived):
        assert came == {(r, (r - 1 - number + (number > 2) * 4) % 4) for r in range(4)}


def test_partial_sums_in_scratch_buffers_are_seen_too(results):
    """lib's ring leaves the tensor as it is until the second pass: what it holds
    shows in its messages."""
    states, _ = totals(results, "lib's ring")
    assert sorted(states[2][0]) == [1, 2, 3, 4]
    assert states[2][0][0] == 4  # rank r ends the first pass with chunk r


def test_sums_between_two_receives_are_inferred(results):
    states, _ = totals(results, "tree")
    # rank 0 receives twice before it sends
    assert [state[0][0] for state in states] == [2, 4, 4, 4]


def test_a_round_in_which_nothing_is_added_is_named(results):
    panels = rounds(results["a round short"].ledger.entries)
    states, arrived = states_after(results["a round short"], panels)
    assert [kind(states, arrived, n) for n in range(5)] == ["added"] * 2 + ["nothing added"] * 3


def test_every_round_is_in_the_alt_text(drawings):
    alt = drawings["ring"].alt
    assert len(re.findall(r"Round \d: 0 to 1, 1 to 2, 2 to 3, 3 to 0; then rank 0 holds", alt)) == 6
    star = drawings["star"].alt
    assert (
        "Round 1: 1 to 0, 2 to 0, 3 to 0; then rank 0 holds 4 4 4 4; rank 1 holds 1 1 1 1" in star
    )


def quiet(tensor):
    """Sends nothing."""


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: launch.capture(traced, quiet, nproc=2),
            "0 rounds on 2 ranks: 2 to 4 ranks and 1 to 8 rounds",
        ),
        (lambda: launch.capture(traced, textbook_ring, nproc=5), "8 rounds on 5 ranks"),
        (
            lambda: launch.capture(traced, textbook_ring, nproc=2, ledger=False),
            "launch with ledger=True",
        ),
        (lambda: [{"sent": [], "held": [], "final": {}}] * 2, "launch with ledger=True"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        plots.ring(make())


def test_a_trace_of_another_run_is_refused():
    entry = lambda rank, op, peer, t: SimpleNamespace(
        rank=rank, op=op, peer=peer, tag=0, posted=t, wait_to=t + 1, done=None, numel=1
    )

    class Results(list):
        ledger = SimpleNamespace(entries=[entry(0, "send", 1, 0.0), entry(1, "recv", 0, 0.0)])

    untraced = Results([{"sent": [], "held": [], "final": {}} for _ in range(2)])
    with pytest.raises(ValueError, match="rank 0's ledger has 1 sends, its trace 0"):
        plots.ring(untraced)
