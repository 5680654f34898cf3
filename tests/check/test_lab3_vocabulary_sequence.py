"""The checks of Lab 3's sections 5 to 7: lib's own functions fulfil their claims; what the inputs tell apart."""

import inspect

import pytest
import torch
from as_an_answer import as_an_answer

from lib import launch
from lib.check.exercises import EXERCISES
from lib.check.framework import evaluate
from lib.check.lab3 import cross_entropy, cross_entropy_known, embedding, sequence
from lib.check.lab3.compare import same
from lib.tensor_parallel import loss

POINTS = {"vocabulary": 22, "sequence": 18}


def answer(fn):
    if fn is not loss.vocab_parallel_cross_entropy:
        return as_an_answer(fn)
    # What once_differentiable makes belongs to a module of torch that cannot travel to the ranks by value.
    source, written = inspect.getsource(loss).replace("    @once_differentiable\n", ""), {"__name__": "an_answer"}
    exec(compile(source, "an_answer.py", "exec"), written)
    return written[fn.__name__]


@pytest.mark.parametrize("name", POINTS)
def test_libs_functions_fulfil_the_claims_in_one_launch(name, monkeypatch):
    launches, capture = [], launch.capture
    monkeypatch.setattr(launch, "capture", lambda *args, **kwargs: launches.append(kwargs) or capture(*args, **kwargs))
    bundle = EXERCISES[name]
    outcome = evaluate(bundle, tuple(answer(part.reference) for part in bundle.parts))
    assert outcome.passed, "\n".join(outcome.lines)
    assert outcome.points == POINTS[name]
    assert [kwargs["nproc"] for kwargs in launches] == [4]


def test_libs_split_state_dict_fulfils_the_claims():
    exercise = EXERCISES["split_state_dict"]
    outcome = evaluate(exercise, as_an_answer(exercise.reference))
    assert outcome.passed, "\n".join(outcome.lines)
    assert outcome.points == 10


def told_apart(want, known):
    return [words for words, tensor in known.items() if same(tensor, want)]


@pytest.mark.parametrize("N", (2, 3, 4))
def test_no_known_mistake_gives_what_is_expected(N):
    tokens, table, _ = embedding._data()
    z = torch.randn(2, 6, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(12).view(2, 6)
    right = torch.nn.functional.cross_entropy(z.flatten(0, 1), targets.flatten())
    dz = z.softmax(-1) - torch.nn.functional.one_hot(targets, 12)
    for rank in range(N):
        assert told_apart(table[tokens], embedding._known(tokens, table, rank, N)) == []
        assert told_apart(right, cross_entropy_known.losses(z, targets, rank, N)) == []
        mine = 0.5 * dz.chunk(N, -1)[rank] / 12
        assert told_apart(mine, cross_entropy_known.gradients(z, targets, rank, N, 0.5)) == []
        for made in (sequence._joined, sequence._summed):
            _, want, known = made(N, rank, 1)
            # In another order some rank may keep its place.
            assert {words.strip() for words in told_apart(want, known)} <= {sequence.ORDER}


@pytest.mark.parametrize("case", cross_entropy.LARGE, ids=lambda case: case.where)
def test_large_logits_overflow_without_the_largest_of_all_ranks(case):
    logits, _ = cross_entropy._data(case)
    parts = logits.chunk(case.world_size, -1)
    assert not logits.exp().sum(-1).log().isfinite().all()
    added = sum(part.amax(-1) for part in parts)
    assert not (logits - added.unsqueeze(-1)).exp().sum(-1).log().isfinite().all()
    top = logits.amax(-1, keepdim=True)
    assert ((logits - top).exp().sum(-1).log() + top.squeeze(-1)).isfinite().all()
