"""Ranks and coordinates, groups along axes: against published layouts, against a plain
search, and on 8 ranks."""

import itertools
import math

import pytest
import torch
import torch.distributed as dist

from lib import collectives, launch, ledger
from lib.hybrid.mesh import (
    Mesh,
    axes_of,
    check_sizes,
    coordinates,
    groups_along,
    rank_at,
    sent_along,
)

CUBE = {"pp": 2, "dp": 2, "tp": 2}
MESHES = [
    CUBE,
    {"tp": 3},
    {"a": 2, "b": 1, "c": 5},
    {"tp": 2, "pp": 4, "dp": 3},
    {"pp": 2, "dp": 3, "cp": 2, "tp": 2},
]


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_ranks_count_the_coordinates_with_the_last_axis_fastest(sizes):
    places = [
        dict(zip(sizes, place, strict=True))
        for place in itertools.product(*map(range, sizes.values()))
    ]
    for rank, place in enumerate(places):
        assert coordinates(rank, sizes) == place and list(coordinates(rank, sizes)) == list(sizes)
        assert rank_at(place, sizes) == rank


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_a_group_holds_the_ranks_that_differ_in_its_axes_alone(sizes):
    n = math.prod(sizes.values())
    for count in range(len(sizes) + 1):
        for axes in itertools.combinations(sizes, count):
            groups = groups_along(axes, sizes)
            assert sorted(rank for group in groups for rank in group) == list(range(n))
            assert groups == groups_along(axes[::-1], sizes) == sorted(map(sorted, groups))
            for group in groups:
                first = coordinates(group[0], sizes)
                same = [
                    r
                    for r in range(n)
                    if all(coordinates(r, sizes)[a] == first[a] for a in sizes if a not in axes)
                ]
                assert group == same
                assert axes_of(group, sizes) == tuple(
                    a for a in sizes if a in axes and sizes[a] > 1
                )


def test_16_gpus_as_megatron_s_documentation_lays_them_out():
    """tp = 2, pp = 4, from the docstring of
    megatron.core.parallel_state.initialize_model_parallel."""
    sizes = {"pp": 4, "dp": 2, "tp": 2}
    assert groups_along(["tp"], sizes) == [[r, r + 1] for r in range(0, 16, 2)]
    assert groups_along(["dp"], sizes) == [
        [0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15],
    ]  # fmt: skip
    assert groups_along(["pp"], sizes) == [
        [0, 4, 8, 12],
        [1, 5, 9, 13],
        [2, 6, 10, 14],
        [3, 7, 11, 15],
    ]
    assert groups_along(["pp", "tp"], sizes) == [
        [0, 1, 4, 5, 8, 9, 12, 13],
        [2, 3, 6, 7, 10, 11, 14, 15],
    ]


def test_context_ranks_lie_between_tensor_and_data_ranks_and_are_data_ranks_for_the_gradient():
    """Megatron's order: tp fastest, then cp, dp, pp. tp = cp = dp = pp = 2, worked out by hand."""
    sizes = {"pp": 2, "dp": 2, "cp": 2, "tp": 2}
    assert groups_along(["cp"], sizes)[:4] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups_along(["dp"], sizes)[:4] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert groups_along(["dp", "cp"], sizes) == [
        [0, 2, 4, 6],
        [1, 3, 5, 7],
        [8, 10, 12, 14],
        [9, 11, 13, 15],
    ]
    assert groups_along(["pp"], sizes)[0] == [0, 8]


def test_the_experts_mesh_over_the_same_ranks_has_the_same_pipelines():
    """Attention with tp = 2, dp = 4; experts with ep = 4, uncut: 8 ranks a stage, 2 stages."""
    dense, experts = {"pp": 2, "dp": 4, "cp": 1, "tp": 2}, {"pp": 2, "edp": 2, "ep": 4, "etp": 1}
    assert groups_along(["pp"], dense) == groups_along(["pp"], experts)
    assert groups_along(["ep"], experts)[0] == [0, 1, 2, 3] and groups_along(["edp"], experts)[
        0
    ] == [0, 4]


def test_64_stages_x_6_data_x_8_tensor_on_3072_gpus():
    sizes = {"pp": 64, "dp": 6, "tp": 8}
    check_sizes(sizes, 3072)
    tensor, data, stages = (groups_along([axis], sizes) for axis in ("tp", "dp", "pp"))
    assert (len(tensor), len(data), len(stages)) == (384, 512, 48)
    # a tensor group in each DGX
    assert tensor == [list(range(8 * node, 8 * node + 8)) for node in range(384)]
    assert data[0] == [0, 8, 16, 24, 32, 40] and stages[0] == list(range(0, 3072, 48))
    assert coordinates(3071, sizes) == {"pp": 63, "dp": 5, "tp": 7}
    assert rank_at({"pp": 1, "dp": 2, "tp": 3}, sizes) == 48 + 2 * 8 + 3
    # The other way round a tensor group would have a GPU on every 48th node.
    assert groups_along(["tp"], {"tp": 8, "dp": 6, "pp": 64})[0] == list(range(0, 3072, 384))


@pytest.mark.parametrize(
    ("sizes", "world_size", "text"),
    [
        (
            {"pp": 2, "dp": 2, "tp": 3},
            8,
            "mesh pp=2 * dp=2 * tp=3 = 12, but world_size is 8: use tp=2",
        ),
        ({"pp": 2, "dp": 2, "tp": 2}, 4, "= 8, but world_size is 4: use pp=1 or dp=1 or tp=1"),
        ({"pp": 3, "tp": 3}, 8, "= 9, but world_size is 8: use sizes whose product is 8"),
        ({"pp": 0, "tp": 8}, 8, "axis pp has 0 ranks; leave it at 1"),
    ],
)
def test_sizes_that_do_not_make_the_world_say_what_would(sizes, world_size, text):
    with pytest.raises(ValueError, match=text.replace("*", r"\*")):
        check_sizes(sizes, world_size)


def test_places_outside_the_mesh_are_refused():
    with pytest.raises(ValueError, match="rank 8 in a mesh of 8 ranks, 0 to 7"):
        coordinates(8, CUBE)
    with pytest.raises(ValueError, match="tp=2: the axis has coordinates 0 to 1"):
        rank_at({"pp": 0, "dp": 0, "tp": 2}, CUBE)
    with pytest.raises(ValueError, match="give one of each"):
        rank_at({"pp": 0, "dp": 0}, CUBE)
    with pytest.raises(ValueError, match="no axis cp in the mesh pp=2, dp=2, tp=2: add cp=1"):
        groups_along(["cp"], CUBE)


SETS = [("tp", "dp"), ("pp", "dp", "tp")]
ORDERS = [CUBE, {"tp": 2, "pp": 1, "dp": 4}]


def on_ranks():
    """[(where I am, {axes: who is in my group, by asking them}), ...] of each mesh; the
    error of a missing set."""
    seen = []
    for sizes in ORDERS:
        mesh, members = Mesh(sizes, SETS), {}
        ledger.mark(str(sizes))
        for axes in [("pp",), ("dp",), ("tp",), *SETS]:
            group = mesh.group(*axes)
            members[axes] = collectives.all_gather(torch.tensor([dist.get_rank()]), group).tolist()
            assert (
                mesh.size(*axes) == dist.get_world_size(group) and mesh.group(*axes[::-1]) is group
            )
            assert mesh.local_rank(*axes) == mesh.local_rank(*axes[::-1]) == dist.get_rank(group)
        ledger.mark("")
        seen.append((mesh.here, members))
    try:
        mesh.group("pp", "tp")
    except ValueError as error:
        seen.append(str(error))
    try:
        Mesh({"pp": 2, "tp": 2})
    except ValueError as error:
        seen.append(str(error))
    return seen


@pytest.fixture(scope="module")
def results():
    return launch.capture(on_ranks, backend="gloo", nproc=8, timeout=120)


def test_every_rank_is_in_its_groups_and_in_their_order(results):
    for rank, seen in enumerate(results):
        for sizes, (here, members) in zip(ORDERS, seen[:2], strict=True):
            assert here == coordinates(rank, sizes)
            for axes, ranks in members.items():
                assert ranks in groups_along(axes, sizes) and rank in ranks


def test_a_missing_set_and_a_wrong_mesh_are_named(results):
    assert (
        "no group along pp, tp, only along tp; pp; dp; tp, dp; tp, pp, dp: Mesh(" in results[0][2]
    )
    assert "mesh pp=2 * tp=2 = 4, but world_size is 8: use pp=4 or tp=4" in results[0][3]


def test_what_was_sent_is_told_by_axes(results):
    """All-gathers of one number: N(N-1) elements in a group of N."""
    sent = sent_along(results.ledger.section(str(CUBE)).entries, CUBE)
    assert sent == {
        ("pp",): 8,
        ("dp",): 8,
        ("tp",): 8,
        ("dp", "tp"): 2 * 12,
        ("pp", "dp", "tp"): 56,
    }
    tp_first, wide = {"tp": 2, "pp": 1, "dp": 4}, 2 * 12
    sent = sent_along(results.ledger.section(str(tp_first)).entries, tp_first)
    assert sent == {("dp",): wide, ("tp",): 8, ("tp", "dp"): 2 * 56}  # both sets are all ranks here
