"""A mistake on ranks is answered with its cause: in the error, or in a warning after a run
that returned."""

import causes
import pytest

from lib import launch

pytestmark = pytest.mark.usefixtures("on_gloo")
slow = pytest.mark.slow

GROUPS = "every rank must call new_group for every group, in the same order"
COUNTS = "exchange the counts first, with dist.all_to_all_single(receive_counts, send_counts)"
WAIT = "Try: call .wait() on the work that the call returns"
MODULES = "Try: every rank calls the same modules in the same order"
ERRORS = [
    # fn, how many ranks, what the message must name
    ("makes_only_its_own", 4, ["ranks 0 and 3 made group 1 with [0, 3], ranks 1 and 2 with [1, 2]",
                               GROUPS, "[0, 3]"]),
    ("makes_them_in_another_order", 4,
    ["ranks 0 and 1 made group 1 with [0, 1], ranks 2 and 3 with [2, 3]", GROUPS]),
    ("makes_rows_and_columns_in_a_loop_of_its_own", 4,
    ["ranks 0 and 1 made group 1 with [0, 1], ranks 2", "row = "]),
    ("makes_an_embedding_group_in_between", 4,
    ["made group 1 with [0, 3], ranks 1 and 2 with [0, 1]", "causes.py:"]),
    ("makes_one_without_the_last_rank_by_its_count", 3,
    ["rank 0 made group 1 with [0, 1, 2], ranks 1 and 2 with"]),
    ("makes_those_with_its_neighbours_in_a_line", 3,
    ["ranks 0 and 1 made group 1 with [0, 1], rank 2 with [1, 2]"]),
    ("makes_its_own_first", 4, ["ranks 0 and 1 made group 1 with [0, 1], ranks 2 and 3 with",
                                "in pairs"]),
    ("receives_in_another_order", 2, ["rank 0 sends with tag 1 and rank 1 receives with tag 2",
                                      "with tag 2, causes"]),
    ("counts_its_tags_from_another_number", 2,
    ["rank 0 sends with tag 0 and rank 1 receives with tag 1"]),
    ("tags_by_its_own_rank", 3, ["rank 0 sends with tag 0 and rank 1 receives with tag 1",
                                 "rank 2 waits in"]),
    ("forgets_the_tag_of_the_receive", 2,
    ["rank 0 sends with tag 7 and rank 1 receives with tag 0"]),
    ("gives_gradients_another_tag_on_their_way_back", 2,
    ["rank 1 sends with tag 1 and rank 0 receives with tag 0"]),
    ("forgets_the_tag_of_the_send", 2, ["rank 1 sends with tag 0 and rank 0 receives with tag 7"]),
    ("expects_more_rows_than_it_is_given", 2,
    ["rank 0 gives rank 1 2 rows of 2 elements, but rank 1 expects 3 rows of",
        "rank 0 gives [1, 2]: all_to_all_single #0", "rank 1 expects [3, 0]: all",
        "never receives the last 1 row",
        COUNTS]),
    ("expects_fewer_rows_than_it_is_given", 2, ["rank 0 gives rank 1 2 rows of 4",
                                                "expects 1 row of 4", COUNTS]),
    ("takes_its_own_counts_for_those_of_others", 3,
    ["rank 0 gives rank 2 3 rows of 2 elements, but rank 2 expects 1"]),
    ("allocates_a_list_by_its_own_lengths", 2,
    ["all_to_all #0 of all 2 ranks: rank 0 gives rank 1 4 elements"]),
    ("gathers_lengths_as_long_as_its_own", 2,
    ["rank 0 gives rank 1 5 elements, but rank 1 expects 4", "pad every"]),
    ("gathers_to_one_rank_that_made_no_room", 3, ["gather #0 of",
                                                  "rank 2 gives rank 0 4 elements, but rank 0"]),
    ("keeps_the_counts_of_the_first_step", 2,
    ["all_to_all_single #2 of all 2 ranks: rank 0 gives rank 1 3 rows of 3",
        "rank 1 expects 2 rows of 3", COUNTS]),
    ("gathers_a_last_batch_that_is_shorter_on_one_rank", 2,
    ["all_gather #2 of all 2", "rank 1 expects 6"]),
    ("forgets_to_split_evenly_on_one_rank", 2,
    ["rank 0 gives rank 1 1 element, but rank 1 expects 2 elements"]),
    ("an_expert_without_tokens_is_skipped_under_fsdp", 2,
    ["in FSDP's experts.1 (weight, bias), causes.py:", MODULES]),
    ("each_rank_calls_another_expert_under_fsdp", 2,
    ["differ in the module", "rank 0: all_gather", "rank 1: all_gath",
        "in FSDP's experts.1 (weight, bias)", "in FSDP's experts.2 (weight, bias)", MODULES]),
    ("blocks_in_another_order_on_one_rank_under_fsdp", 2,
    ["differ in the module", "in FSDP's experts.0 (weight, bias)",
        "in FSDP's experts.2 (weight, bias)", MODULES]),
    ("an_evaluation_on_one_rank_under_fsdp", 2, ["rank 0: all_gather", "in FSDP's",
                                                 "rank 1: barrier", MODULES]),
    ("an_expert_without_tokens_is_skipped_under_ddp", 2,
    ["Parameters without a gradient on rank 1: experts.1.weight"]),
    ("a_head_is_never_used_under_ddp", 2,
    [": experts.1.weight, experts.1.bias, experts.2.weight, experts.2.bias"]),
    ("another_shape_on_one_rank_under_ddp", 2, ["params[2], 1.weight, in this process"]),
    ("a_batch_more_on_one_rank_under_ddp", 2,
    ["DDP's gradient bucket 0 of Sequential (0.weight, 0.b"]),
    ("a_layer_skipped_on_one_rank_with_dtensor", 2,
    ["all_reduce #5", "DTensor's redistribution in module 1", MODULES]),
]  # fmt: skip
QUICK = {
    "makes_only_its_own", "receives_in_another_order", "expects_more_rows_than_it_is_given",
    "receives_and_forgets", "waits_for_the_last_of_its_buckets",
}  # fmt: skip
WARNINGS = [
    ("makes_it_among_the_members_only", 4,
    ["ranks 0 and 1 made group 1 with [0, 1], ranks 2 and 3 did not", GROUPS]),
    ("receives_and_forgets", 2, ["rank 1: recv from rank 0 of float32 (1,), causes.py:",
                                 "before the message", WAIT]),
    ("receives_into_a_list", 2, ["rank 1: recv from rank 0",
                                 "dist.irecv(got[-1], 0) (3 times): nothing waited", WAIT]),
    ("reduces_and_forgets", 2, ["ranks 0 and 1: all_reduce #0 SUM of float32 (1000,)",
                                "the result is in it", WAIT]),
    ("waits_for_the_last_of_its_buckets", 2, ["ranks 0 and 1: all_reduce #0",
                                              "async_op=True) (6 times): no", WAIT]),
    ("gathers_ahead_and_leaves_early", 2, ["all_gather_into_tensor #2 of float32 (1,)",
                                           "full[layer + 1]", WAIT]),
    ("broadcasts_its_weights_and_trains_at_once", 2,
    ["ranks 0 and 1: broadcast #0 with root 0", "(4 times)", WAIT]),
    ("begins_a_batch_of_messages", 2, ["rank 0: send to rank 1 of", "rank 0: recv from rank 1 of",
        "(on rank 1, too): nothing waited", WAIT]),
    ("sends_round_a_ring_and_waits_for_the_receives_alone", 3, ["rank 0: send to rank 1 of",
        "(on ranks 1 and 2, too)", "may change", WAIT]),
]  # fmt: skip


def rows(table):
    return [pytest.param(*row, marks=() if row[0] in QUICK else slow, id=row[0]) for row in table]


@pytest.mark.parametrize(("name", "nproc", "says"), rows(ERRORS))
def test_an_error_names_the_cause(name, nproc, says):
    with pytest.raises(launch.RankError) as caught:
        launch.capture(getattr(causes, name), nproc=nproc, timeout=30)
    message = str(caught.value)
    assert [text for text in says if text not in message] == [], message
    assert "a C++ library gave up" not in message and "peers.py" not in message, message
    assert caught.value.kind in ("mismatch", "deadlock", "raised", "no progress")


@pytest.mark.parametrize(("name", "nproc", "says"), rows(WARNINGS))
def test_a_warning_names_the_cause(name, nproc, says):
    warnings = "\n".join(launch.capture(getattr(causes, name), nproc=nproc, timeout=30).warnings)
    assert [text for text in says if text not in warnings] == [], warnings
