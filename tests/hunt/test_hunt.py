"""The hunt: every mistake, on every mesh that it is drawn on, is told from the evidence;
nobody guesses it."""

import random
from collections import Counter

import pytest
from sweeps import sweep

from lib import launch
from lib.check.lab6.findings import EXERCISE, against, right_ones
from lib.hybrid import hunt
from lib.hybrid.hunt import HEALTHY, KINDS, MISTAKES, Finding, alike, detective, draw
from lib.hybrid.hunt.evidence import Evidence, evidence, trained
from lib.hybrid.hunt.rules import JOBS, STEPS, Setup, right

CASES = {  # (mesh, with experts): [(mistake, axis, evidence, what it changes in the rules)]
    (tuple(sizes.items()), mixture): [
        (mistake, *case)
        for mistake in (*MISTAKES, HEALTHY)
        for case in draw._cases(mistake, sizes, mixture)
    ]
    for sizes, mixture in draw.MESHES
}


def all_of_them(setup, several):
    return [trained(setup, rules) for rules in several]


def mistakes_on(mesh):
    return {(mistake, axis) for mistake, axis, _, _ in CASES[mesh]}


@pytest.fixture(
    scope="module",
    params=sweep(CASES, holds=mistakes_on),
    ids=lambda of: "-".join(axis for axis, _ in of[0]),
)
def runs(request):
    """[(what is wrong, from step 1 on; the Evidence)] of all that can go wrong on a mesh."""
    sizes, mixture = request.param
    setup, cases = Setup(dict(sizes), mixture, seed=3), CASES[request.param]
    several = [[right(setup), right(setup)._replace(**changes)] for *_, changes in cases]
    results = launch.capture(all_of_them, setup, several, nproc=4, backend="gloo", ledger=False)
    wrong = [
        HEALTHY if axis is None else Finding(mistake, axis, 1, kind)
        for mistake, axis, kind, _ in cases
    ]
    return [(each, evidence([rank[i] for rank in results])) for i, each in enumerate(wrong)]


def test_each_mistake_is_told_from_the_evidence_alone(runs):
    for wrong, e in runs:
        assert detective._detect(e) == wrong


def test_no_other_finding_is_left_without_something_that_speaks_against_it(runs):
    """Of each wrong finding that could be said of a job of this mesh, beside what is true."""
    for wrong, e in runs:
        for said in [each for each, _ in runs if each != wrong]:
            why, text = against(said, e)
            assert why in {hint.name for hint in EXERCISE.hints}
            assert wrong == HEALTHY or wrong.mistake not in text


def test_every_mistake_can_be_drawn_and_the_mesh_does_not_tell_it():
    for mistake in MISTAKES:
        assert any(mistake == name for cases in CASES.values() for name, *_ in cases)
    for cases in CASES.values():
        assert len({name for name, *_ in cases}) >= 5


def test_a_seed_draws_each_mistake_once_and_two_healthy_jobs():
    for seed in range(50):
        found = [each for _, _, each in draw.drawn(seed)]
        assert found.count(HEALTHY) == 2 and len(found) == JOBS
        assert sorted(each.mistake for each in found if each != HEALTHY) == sorted(MISTAKES)
        assert all(
            0 <= each.step < STEPS - 1 and each.evidence in KINDS
            for each in found
            if each != HEALTHY
        )


def test_two_seeds_draw_other_jobs_and_one_seed_the_same():
    draws = [str(draw.drawn(seed)) for seed in range(100)]
    assert len(set(draws)) == 100 and draws[7] == str(draw.drawn(7))
    told = [dict(enumerate(each for *_, each in draw.drawn(seed))) for seed in range(20)]
    shared = [sum(map(len, right_ones(a, told[b]))) for a in range(20) for b in range(20) if a != b]
    assert sum(shared) / len(shared) < 1


def points(seed, said):
    mistakes, healthy = right_ones(seed, said)
    needs = (4, 6, 8)
    reached = [len(mistakes) >= n for n in needs] + [len(mistakes) + len(healthy) == JOBS]
    return sum(claim.points for claim, ok in zip(EXERCISE.claims, reached, strict=True) if ok)


def test_whoever_guesses_gets_nothing():
    """The best guess there is: who knows how jobs are drawn and sees the mesh of
    each, but no evidence."""
    chance = random.Random(1)
    told, of_all_healthy = [], []
    for seed in range(3000):
        guesses = {}
        for number, (setup, _, _) in enumerate(draw.drawn(seed)):
            mistake, axis, kind, _ = chance.choice(CASES[tuple(setup.sizes.items()), setup.mixture])
            guesses[number] = (
                HEALTHY
                if axis is None
                else Finding(mistake, axis, chance.randrange(STEPS - 1), kind)
            )
        told.append(points(seed, guesses))
        of_all_healthy.append(points(seed, dict.fromkeys(range(JOBS), HEALTHY)))
    assert sum(told) / len(told) < 0.02 and max(of_all_healthy) == 0
    assert EXERCISE.points not in Counter(told)


def falls(e):
    """Does the loss fall, as the section says of every job?"""
    losses = [e.held(step, "loss", "of the batch")[0] for step in range(e.steps)]
    return losses[-1] < losses[0]


def test_the_example_is_what_its_docstring_says_and_its_messages_show_it():
    e = hunt.example()
    assert detective._detect(e) == Finding("mean over the wrong group", "dp", 2, "gradient")
    assert e.sent(1)["dp",] > 1000 > e.sent(2)["dp",] and e.sent(2)["tp",] > e.sent(1)["tp",]
    assert falls(e)
    assert "single process" in e.table(2) and "single process" not in e.table(1)
    assert "gradient: sharded" in e.table(0) and "experts" not in e.table(0)


@pytest.mark.slow
def test_a_job_of_a_seed_is_the_same_again_and_others_are_refused():
    e = hunt.job(5, 2)
    assert hunt.job(5, 2) is e
    hunt.evidence._job.cache_clear()
    again = hunt.job(5, 2)
    assert [seen for _, seen, _ in again.results] == [seen for _, seen, _ in e.results]
    for seed, number in ((5, 10), (5, -1), ("5", 0), (True, 0)):
        with pytest.raises(ValueError, match=r"job|seed"):
            hunt.job(seed, number)


def test_alike_compares_ranks_along_one_axis():
    sizes = {"dp": 2, "tp": 2}
    assert alike([1, 2, 1, 2], "dp", sizes) and not alike([1, 2, 1, 2], "tp", sizes)
    assert alike([None, 1.0, 5.0, 1.0 + 1e-14], "dp", sizes) and alike([None] * 4, "tp", sizes)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 44))
def test_whole_draws_are_solved(seed):
    assert hunt.findings(seed) == (seed, dict(enumerate(each for *_, each in draw.drawn(seed))))
    assert all(falls(hunt.job(seed, number)) for number in range(JOBS))


def test_agreement_says_which_ranks_are_alike_and_which_should_be():
    what = ("gradient", "sharded"), ("gradient", "replicated")
    held, alone = ([1.0, 1.0, 3.0, 3.0], [5.0] * 4), ([2.0, 4.0, 2.0, 4.0], [5.0] * 4)
    ranks = [
        tuple([dict(zip(what, [of[0][rank], of[1][rank]], strict=True))] for of in (held, alone))
        for rank in range(4)
    ]
    e = Evidence({"dp": 2, "tp": 2}, "dense", what, [(None, *rank) for rank in ranks])
    assert e.agreement(0, "gradient").splitlines() == [
        "sharded     along dp: different, in a single process the same",
        "sharded     along tp: the same,  in a single process different",
    ]
    assert e.agreement(0, "norm") == ""
