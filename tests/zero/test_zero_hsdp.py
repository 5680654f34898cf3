"""HSDP: equal to one process, and each axis sends what the formula says."""

from typing import NamedTuple

import pytest
import torch.distributed as dist
from replicas import differences, share, snapshot
from zero_cases import MAX_NORM, STEPS, adamw, case_of, decay_groups, single_process, units_of

from lib import collectives, launch, ledger
from lib.cost.zero import sent_elements
from lib.training.buckets import slots
from lib.training.clip import clip_gradients
from lib.zero import HSDP

NAMES = ["gpt float64", "paths float64"]
S, R = 2, 2  # ranks 0 1 are a node, 2 3 another
K = 3  # micro-batches of a step, of a row each


class Trained(NamedTuple):
    """What a rank saw of one model. The last three are padded elements."""

    steps: list  # [(gradients, parameters) after each step]
    norms: list
    psi: int
    root: int
    trained: int  # of psi


def train(name, group, replicas):
    """Trained. The ledger has the sections "inside" and "across" of each step."""
    case, rank = case_of(name), dist.get_rank()
    net = case.build(seed=rank)  # other weights on every rank: rank 0's count
    hsdp = HSDP(net, units_of(name, net), group, replicas, parameters=decay_groups(net))
    optimizer, seen, norms = adamw(hsdp.groups), [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        mine = share(case.batch(step), rank, S * R)
        ledger.mark(f"inside {name} {step}")
        for i in range(K):
            (case.loss(net, share(mine, i, K)) / K).backward()
            hsdp.average_gradients()
        ledger.mark(f"across {name} {step}")
        hsdp.average_over_replicas()
        ledger.mark("")
        gradients = whole_gradients(net, hsdp)
        norms.append(clip_gradients(hsdp.shards, MAX_NORM, [group]).item())
        optimizer.step()
        with hsdp.unsharded():
            seen.append((gradients, snapshot(net)[1]))
    trained = [flat for flat in hsdp.flats if flat.requires_grad]
    padded = (sum(f.padded for f in flats) for flats in (hsdp.flats, hsdp.root.flats, trained))
    return Trained(seen, norms, *padded)


def whole_gradients(net, hsdp):
    """{name: mean gradient}, gathered inside the node; None where a parameter is frozen."""
    names = {p: n for n, p in net.named_parameters()}
    found = dict.fromkeys(names.values())
    for flat in hsdp.flats:
        if flat.requires_grad:
            pieces = slots(
                collectives.all_gather(flat.shard.grad, flat.group)[: flat.n], flat.slots
            )
            found |= {names[p]: g.clone() for p, g in zip(flat.parameters, pieces, strict=True)}
    return found


def too_early(group, replicas):
    """What average_over_replicas says between backward and average_gradients, and what it sent."""
    case = case_of(NAMES[0])
    net = case.build(seed=0)
    hsdp = HSDP(net, units_of(NAMES[0], net), group, replicas)
    case.loss(net, case.batch(0)).backward()
    ledger.mark("too early")
    with pytest.raises(RuntimeError) as error:
        hsdp.average_over_replicas()
    ledger.mark("")
    hsdp.average_gradients()
    hsdp.average_over_replicas()
    return str(error.value), len(hsdp.shards)


def everything():
    nodes = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    groups = nodes[dist.get_rank() // S], columns[dist.get_rank() % S]
    return {name: train(name, *groups) for name in NAMES} | {"too early": too_early(*groups)}


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=S * R)


@pytest.mark.parametrize("name", NAMES)
def test_every_gradient_and_parameter_is_that_of_one_process(results, name):
    want = single_process(name, "adamw")
    for seen in (results[rank][name] for rank in range(S * R)):
        assert seen.norms == pytest.approx(want.norms, rel=1e-12)
        assert differences(seen.steps, want.steps, case_of(name).tolerance) == []


def test_a_rank_sends_3k_psi_inside_the_node_and_an_s_th_of_an_all_reduce_across(results):
    name = "gpt float64"
    for rank in range(S * R):
        _, _, psi, root, trained = results[rank][name]
        for step in range(STEPS):
            inside, across = (
                results.ledger.section(f"{way} {name} {step}") for way in ("inside", "across")
            )
            assert inside.sent("elements", rank) == sent_elements(psi, 3, S, K, root)
            # 2 (R-1)/R n of each shard: for R = 2, n
            assert across.sent("elements", rank) == 2 * (R - 1) / R * trained / S
            assert {e.peer // S == rank // S for e in inside.of(rank)} == {True}
            assert {e.peer % S == rank % S for e in across.of(rank)} == {True}


def test_a_shard_without_a_gradient_is_refused_before_any_message(results):
    for rank in range(S * R):
        said, n = results[rank]["too early"]
        assert f" of {n} trained shards have no gradient, the first of them that of" in said
        assert "call average_gradients() after each backward" in said
        # a reduce-scatter inside the node may still be in flight
        assert all(e.peer // S == rank // S for e in results.ledger.section("too early").of(rank))
