"""PipeDream on ranks: each action reads the version that the table says, and with stashing
gradients are gradients."""

import copy
import functools

import pytest
import torch
from pipelines import CASES, TOLERANCE, cut, differences, split_rows
from torch import nn

from lib import launch
from lib.pipeline import Action, pipedream, versions
from lib.pipeline.asynchronous import PipeDream
from lib.pipeline.links import connect
from lib.pipeline.stash import NewestOnly, WeightStash
from lib.training.recompute import Recomputed

RANKS = {1: [2], 2: [1, 3], 3: [2, 0, 3], 4: [0, 1, 2, 3]}
MODELS = ("gpt", "layers")
STASH = {True: WeightStash, False: NewestOnly}
N = 9  # mini-batches, 2 rows each, the last of 1 row
RUNS = [(name, p, stashing) for name in MODELS for p in RANKS for stashing in (True, False)]


class Noting(torch.optim.SGD):
    """SGD with momentum that notes each step's gradients."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.2, momentum=0.5)
        self.noted = []

    def step(self):
        parameters = self.param_groups[0]["params"]
        self.noted.append([None if q.grad is None else q.grad.clone() for q in parameters])
        super().step()


def model(name, p):
    """(module, its p stages), with no parameter in two of them."""
    module, stages = cut(CASES[name], p)
    if name == "gpt":
        module.head.weight = nn.Parameter(module.head.weight.detach().clone())
    return module, stages


def minibatches(name):
    return split_rows(CASES[name].batch(2 * N - 1), N)


def run_each():
    """{run: what this rank has seen}."""
    links_of = {p: connect([ranks]) for p, ranks in RANKS.items()}
    seen = {}
    for name, p, stashing in RUNS:
        links = links_of[p]
        if links:
            _, stages = model(name, p)
            xs, targets = minibatches(name)
            pipeline = PipeDream(stages, links, xs, Noting, STASH[stashing])
            actions, bytes_held = [], []
            (stage,) = pipeline.stages.values()

            def after(bar, stage=stage, actions=actions, bytes_held=bytes_held):
                actions.append(bar.action)
                tensors = [q for weights in stage.versions_held() for q in weights.values()]
                bytes_held.append(sum({q.data_ptr(): q.nbytes for q in tensors}.values()))

            losses = pipeline.run(xs, targets, CASES[name].loss, after)
            seen[name, p, stashing] = {
                "losses": losses, "reads": pipeline.reads, "most": pipeline.most_versions,
                "actions": actions,
                "bytes": bytes_held, "noted": stage.optimizer.noted,
                "weights": {n: q.detach() for n, q in stage.module.named_parameters()},
            }  # fmt: skip
    return seen


@pytest.fixture(scope="module")
def results():
    return launch.capture(run_each, backend="gloo", nproc=4, timeout=120, ledger=False)


def of(results, run):
    """What the ranks of a run saw, by stage."""
    return [results[rank][run] for rank in RANKS[run[1]]]


@functools.cache
def one_process(name, p):
    """(losses, [[gradients of each update] of each stage], [{name: weight} of each stage at the
    end]).

    Mini-batches one after the other, each at the weights that the table says: stage i at version
    max(0, j-(p-1-i)).
    """
    _, stages = model(name, p)
    newest = [Noting(list(stage.parameters())) for stage in stages]
    at = [[copy.deepcopy(stage)] for stage in stages]  # at[i][k]: stage i at version k
    losses = []
    for j, (x, target) in enumerate(zip(*minibatches(name), strict=True)):
        read = [at[i][max(0, j - (p - 1 - i))] for i in range(p)]
        loss = CASES[name].loss(nn.Sequential(*read)(x), target)
        losses.append(loss.detach())
        for i, stage in enumerate(stages):
            mine = list(read[i].parameters())
            trained = [q for q in mine if q.requires_grad]
            grads = iter(torch.autograd.grad(loss, trained, retain_graph=True))
            for parameter, q in zip(stage.parameters(), mine, strict=True):
                parameter.grad = next(grads) if q.requires_grad else None
            newest[i].step()
            at[i].append(copy.deepcopy(stage))
    return (
        losses,
        [optimizer.noted for optimizer in newest],
        [dict(stage.named_parameters()) for stage in stages],
    )


def off(got, want):
    """{update: the largest difference of a gradient, relative to the stage's largest}."""
    far = {}
    for k, (mine, right) in enumerate(zip(got, want, strict=True)):
        pairs = [(a, b) for a, b in zip(mine, right, strict=True) if b is not None]
        scale = max(b.abs().max() for _, b in pairs)
        far[k] = (max((a - b).abs().max() for a, b in pairs) / scale).item()
    return far


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("name", MODELS)
def test_with_stashing_every_gradient_is_that_of_the_version_that_ran_forward(results, name, p):
    losses, grads, weights = one_process(name, p)
    for i, seen in enumerate(of(results, (name, p, True))):
        assert max(off(seen["noted"], grads[i]).values()) < TOLERANCE
        assert not differences(seen["weights"], {n: q.detach() for n, q in weights[i].items()})
        assert (
            seen["losses"] is None
            if i < p - 1
            else torch.allclose(
                torch.stack(seen["losses"]), torch.stack(losses), rtol=1e-13, atol=0
            )
        )


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("name", MODELS)
def test_without_stashing_all_but_mini_batch_0_have_wrong_gradients_on_all_but_the_last_stage(
    results, name, p
):
    _, grads, _ = one_process(name, p)
    for i, seen in enumerate(of(results, (name, p, False))):
        far = off(seen["noted"], grads[i])
        assert far[0] < TOLERANCE, "no update comes between its forward and its backward"
        if i < p - 1:
            assert all(far[j] > 1e-5 for j in range(1, N)), (i, far)
        # the last stage reads the newest both ways; what it is given is of the others' wrong
        # updates
        else:
            assert far[1] < TOLERANCE and (p == 1) == (max(far.values()) < TOLERANCE)


@pytest.mark.parametrize("run", RUNS)
def test_versions_read_are_those_of_the_table(results, run):
    _, p, stashing = run
    reads = {
        action: version for seen in of(results, run) for action, version in seen["reads"].items()
    }
    assert reads == versions(p, N, stashing)
    assert [seen["actions"] for seen in of(results, run)] == pipedream(p, N)


def test_at_the_first_of_four_stages_mini_batch_4_reads_version_1_and_then_4():
    """(The paper's mini-batch 5: forward after update 1, backward after updates 2 to 4.)"""
    plain = versions(4, N, stashing=False)
    assert (plain[Action(0, "F", 4)], plain[Action(0, "B", 4)]) == (1, 4)


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("name", MODELS)
def test_stage_i_keeps_p_minus_i_versions_in_memory_and_without_stashing_one(results, name, p):
    for stashing, most in ((True, [p - i for i in range(p)]), (False, [1] * p)):
        for i, seen in enumerate(of(results, (name, p, stashing))):
            one = sum(q.nbytes for q in seen["weights"].values())
            assert seen["most"] == most[i] and max(seen["bytes"]) == most[i] * one
            assert seen["bytes"][-1] == one


# The wrong gradient by hand: stage 0 is y = x a^T b^T, stage 1 is L = mean of (y c^T)^2; 2
# mini-batches.


def three_products():
    draw = torch.Generator().manual_seed(0)
    stages = [
        nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)),
        nn.Linear(3, 1, bias=False),
    ]
    for q in nn.ModuleList(stages).double().parameters():
        q.data = torch.randn(q.shape, generator=draw, dtype=torch.float64)
    return stages, torch.randn(4, 3, generator=draw, dtype=torch.float64).split(2)


def by_hand():
    links, seen = connect(), {}
    for stashing in (True, False):
        stages, xs = three_products()
        pipeline = PipeDream(stages, links, xs, Noting, STASH[stashing])
        pipeline.run(xs, xs, lambda y, _: y.square().mean())
        ((_, stage),) = pipeline.stages.items()
        seen[stashing] = stage.optimizer.noted
    return seen


def test_without_stashing_one_half_of_a_gradient_is_of_the_old_weights_and_the_other_of_the_new():
    results = launch.capture(by_hand, backend="gloo", nproc=2, ledger=False)
    (first, last), xs = three_products()
    a, b, c = (q.detach() for q in (*first.parameters(), *last.parameters()))
    step = lambda w, gradient: w - 0.2 * gradient

    # Mini-batch 0: nothing has changed yet. g = dL/dz = z, as L is the mean of 2 squares.
    x = xs[0]
    z = x @ a.T @ b.T @ c.T  # (2, 1)
    grad_y = z @ c
    grads_0 = (grad_y @ b).T @ x, grad_y.T @ (x @ a.T), z.T @ (x @ a.T @ b.T)
    b_new, c_new = step(b, grads_0[1]), step(c, grads_0[2])

    # Mini-batch 1 ran forward through a and b before their update, and through c after its.
    x = xs[1]
    z = x @ a.T @ b.T @ c_new.T
    grad_y = z @ c_new
    right = (grad_y @ b).T @ x, grad_y.T @ (x @ a.T)
    wrong = (grad_y @ b_new).T @ x, grad_y.T @ (x @ a.T)  # the new b, but the x a^T of the old a

    close = lambda got, want: [
        torch.allclose(g, w, rtol=1e-12, atol=1e-13) for g, w in zip(got, want, strict=True)
    ]
    for stashing, expected in ((True, right), (False, wrong)):
        assert close(results[0][stashing][0] + results[1][stashing][0], grads_0) == [True] * 3
        assert close(results[0][stashing][1], expected) == [True] * 2
    assert close(wrong, right) == [False, True]


# What it refuses, and what torch refuses.


def refused():
    links, errors = connect(), []
    (_, tied), (_, four) = cut(CASES["gpt"], 2), cut(CASES["layers"], 4)
    for stages, xs in ((tied, minibatches("gpt")[0]), (four, minibatches("layers")[0])):
        try:
            PipeDream(stages, links, xs, Noting)
        except ValueError as error:
            errors.append(str(error))
    return errors


def test_tied_parameters_and_several_stages_per_rank_are_refused():
    for tied, several in launch.capture(refused, backend="gloo", nproc=2):
        assert (
            "in the first stage and in the last" in tied
            and "model.head.weight = nn.Parameter(" in tied
        )
        assert several == "4 stages on 2 ranks: PipeDream has one stage per rank"


def test_torch_itself_refuses_the_wrong_gradient():
    """What PipeDream without stashing works around, so that it can be seen."""
    first, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.randn(2, 3)
    loss = first(x).sum()
    with torch.no_grad():
        for q in first.parameters():
            q -= 0.1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# Recomputation: the second forward reads what the first one read.


def recomputed_or_not():
    links, seen = connect(), {}
    for wrap in (nn.Identity, Recomputed):
        _, stages = model("layers", 2)
        xs, targets = minibatches("layers")
        stages = [wrap(stage) if wrap is Recomputed else stage for stage in stages]
        pipeline = PipeDream(stages, links, xs, Noting)
        pipeline.run(xs, targets, CASES["layers"].loss)
        seen[wrap.__name__] = pipeline.stages[links.rank].optimizer.noted
    return seen


def test_recomputed_stages_have_the_same_gradients():
    for seen in launch.capture(recomputed_or_not, backend="gloo", nproc=2, ledger=False):
        for kept, again in zip(seen["Identity"], seen["Recomputed"], strict=True):
            assert [g is None for g in kept] == [g is None for g in again]
            assert all(torch.equal(g, h) for g, h in zip(kept, again, strict=True) if g is not None)
