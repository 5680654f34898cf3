"""1F1B written out computes what the schedule, executed as data, computes, and sends the same."""

import pytest
import torch
from pipelines import CASES, cut, differences, one_process

from lib import launch, ledger
from lib.pipeline import one_f_one_b
from lib.pipeline.links import connect
from lib.pipeline.stage import Pipeline
from lib.pipeline.straight import one_f_one_b_step

SIZES = [(p, m) for p in (2, 3, 4) for m in (1, p, 2 * p + 1)]


def both(p):
    """{m: ((loss, gradients) of each way)} on the ranks of one pipeline of p ranks."""
    links, case, seen = connect([range(p)]), CASES["layers"], {}
    for m in (m for size, m in SIZES if size == p and links is not None):
        x, target = (part[: 2 * m] for part in case.batch(2 * m))
        xs, targets, ways = x.split(2), target.split(2), []
        for straight in (True, False):
            _, stages = cut(case, p)
            mine = stages[links.rank]
            with torch.no_grad():
                given = xs
                for stage in stages[: links.rank]:
                    given = [stage(one) for one in given]
            if straight:
                ledger.mark(f"{m}, {straight}")
                loss = one_f_one_b_step(mine, links, given, targets, case.loss)
            else:
                ledger.mark("the shapes of messages")
                pipeline = Pipeline(stages, links, xs if links.rank == 0 else [None] * m)
                ledger.mark(f"{m}, {straight}")
                loss = pipeline.run(one_f_one_b(p, m), xs, targets, case.loss)
            ways.append((loss, {n: q.grad for n, q in mine.named_parameters()}))
        ledger.mark("")
        seen[m] = ways
    return seen


@pytest.fixture(scope="module")
def results():
    return {p: launch.capture(both, p, backend="gloo", nproc=p, timeout=120) for p in (2, 3, 4)}


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_loss_and_gradients_are_those_of_the_schedule_as_data(results, p, m):
    for rank, seen in enumerate(results[p]):
        (loss, grads), (want_loss, want) = seen[m]
        assert (loss is None) == (want_loss is None) == (rank < p - 1)
        if loss is not None:
            assert abs(loss - want_loss) < 1e-12 * abs(want_loss)
        assert grads.keys() == want.keys() and grads
        assert not differences(grads, want)
        assert any(grad is not None and grad.any() for grad in grads.values())


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_messages_are_those_of_the_schedule_as_data(results, p, m):
    sent = [
        [
            [(e.op, e.peer, e.nbytes) for e in results[p].ledger.section(f"{m}, {straight}").of(r)
             if e.op in ("send", "recv")]
            for r in range(p)
        ]
        for straight in (True, False)
    ]  # fmt: skip
    assert sorted(map(sorted, sent[0])) == sorted(map(sorted, sent[1]))
    assert sum(op == "send" for rank in sent[0] for op, _, _ in rank) == 2 * (p - 1) * m


def test_the_comparison_would_see_a_micro_batch_that_is_missing():
    (_, right), (_, other) = one_process("layers", 2, 3), one_process("layers", 2, 4)
    assert differences(other, right)
