"""Lab 0's panels: eight collectives of PyTorch on marked values, counted by hand."""

import torch

from lib import launch
from lib.collectives.shown import before_and_after


def test_eight_collectives_on_marked_values():
    ranks = launch.capture(before_and_after, nproc=4)
    of = lambda rank, name: [None if x is None else x.tolist() for x in ranks[rank][name]]
    own = (10 * torch.arange(1.0, 5.0)).tolist()
    assert len(ranks[1]) == 8
    assert of(1, "broadcast") == [own, [1, 2, 3, 4]]
    assert of(1, "reduce") == [own, None] and of(0, "reduce")[1] == [1111, 2222, 3333, 4444]
    assert of(1, "scatter") == [None, [2]] and of(0, "scatter") == [[1, 2, 3, 4], [1]]
    assert of(1, "gather") == [[20], None] and of(0, "gather") == [[1], [1, 20, 300, 4000]]
    assert of(1, "all-gather") == [[20], [1, 20, 300, 4000]]
    assert of(1, "reduce-scatter") == [own, [2222]]
    assert of(1, "all-reduce") == [own, [1111, 2222, 3333, 4444]]
    assert of(1, "all-to-all") == [own, [2, 20, 200, 2000]]
