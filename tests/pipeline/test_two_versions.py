"""2BW on ranks: every micro-batch reads the version before the newest batch's, two versions are
held, and the training is w_{k+1} = w_k - lr grad f(w_{k-1}) on the whole model."""

import copy
import functools

import pytest
import torch
from pipelines import CASES, TOLERANCE, cut, differences
from torch import nn

from lib import launch
from lib.pipeline import Action, pipedream
from lib.pipeline.asynchronous import PipeDream
from lib.pipeline.links import connect
from lib.pipeline.stash import TwoVersions

RANKS = {1: [2], 2: [1, 3], 3: [2, 0, 3], 4: [0, 1, 2, 3]}
M, BATCHES = 4, 5  # micro-batches of 2 rows to a batch
CASE = CASES["layers"]
SGD = functools.partial(torch.optim.SGD, lr=0.2, momentum=0.5)


def microbatches():
    return [rows.split(2) for rows in CASE.batch(2 * M * BATCHES)]


def run_each():
    """{p: what this rank has seen}"""
    links_of, seen = {p: connect([ranks]) for p, ranks in RANKS.items()}, {}
    for p, links in links_of.items():
        if links:
            _, stages = cut(CASE, p)
            xs, targets = microbatches()
            pipeline = PipeDream(stages, links, xs, SGD, functools.partial(TwoVersions, m=M), M)
            losses = pipeline.run(xs, targets, CASE.loss)
            weights = {name: q.detach() for name, q in stages[links.rank].named_parameters()}
            seen[p] = losses, pipeline.reads, pipeline.most_versions, weights
    return seen


@pytest.fixture(scope="module")
def results():
    return launch.capture(run_each, backend="gloo", nproc=4, timeout=120, ledger=False)


def one_process(p):
    """(losses of the micro-batches, [{name: weight} of each stage at the end])"""
    _, stages = cut(CASE, p)
    optimizers = [SGD(list(stage.parameters())) for stage in stages]
    before, losses = copy.deepcopy(stages), []  # before: the version that the next batch reads
    xs, targets = microbatches()
    for k in range(BATCHES):
        read = before if k else stages  # batches 0 and 1 read version 0
        total = 0.0
        for j in range(k * M, (k + 1) * M):
            loss = CASE.loss(nn.Sequential(*read)(xs[j]), targets[j])
            losses.append(loss.detach())
            total = total + loss / M
        trained = [q for stage in read for q in stage.parameters() if q.requires_grad]
        grads = dict(zip(map(id, trained), torch.autograd.grad(total, trained), strict=True))
        grads = [[grads.get(id(q)) for q in stage.parameters()] for stage in read]
        before = copy.deepcopy(stages)
        for stage, optimizer, mine in zip(stages, optimizers, grads, strict=True):
            for q, grad in zip(stage.parameters(), mine, strict=True):
                q.grad = grad
            optimizer.step()
    return losses, [dict(stage.named_parameters()) for stage in stages]


@pytest.mark.parametrize("p", RANKS)
def test_it_trains_with_the_whole_models_gradient_one_update_old(results, p):
    losses, weights = one_process(p)
    seen = [results[rank][p] for rank in RANKS[p]]
    for mine, right in zip(seen, weights, strict=True):
        assert not differences(mine[3], {name: q.detach() for name, q in right.items()})
    assert torch.allclose(torch.stack(seen[-1][0]), torch.stack(losses), rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize("p", RANKS)
def test_all_stages_read_one_version_forward_and_backward_and_hold_two(results, p):
    seen = [results[rank][p] for rank in RANKS[p]]
    reads = {action: version for _, mine, *_ in seen for action, version in mine.items()}
    n = M * BATCHES
    assert set(reads) == {action for actions in pipedream(p, n) for action in actions}
    assert all(version == max(0, action.microbatch // M - 1) for action, version in reads.items())
    assert reads[Action(0, "F", n - 1)] == BATCHES - 2
    assert [most for _, _, most, _ in seen] == [2] * p
