"""Tests that do not run under NCCL's rules, each with the reason. Not for what fails because lib is
wrong there.

An id is a prefix of pytest's, without parameters or with.
"""

NOT_BLAMED = "tests/launch/test_faults.py::test_slow_but_correct_programs_are_not_blamed"
CAUSES, WARM = "tests/launch/test_causes.py", "tests/launch/test_warm.py"
FORGETS = (
    "a program of it forgets to wait, on purpose: the rules refuse that while it runs, before "
    "anything else can"
)
FRESH = (
    "the rules begin when a rank joins, so every launch has fresh ranks; `tags reuse` is about "
    "ranks used again"
)
EXCLUDED = {
    "tests/collectives/test_contents.py::"
    "test_torchs_own_sends_are_traced_too_and_what_the_rank_held_by_then": (
        "its own ring is for gloo: isend, then recv, unbatched, which hangs in NCCL without "
        "buffers (threshold 0)"
    ),
    "tests/zero/test_zero_memory.py": (
        "counts every storage that lives; the rules keep private copies of what is under way, "
        "which a GPU has not"
    ),
    f"{NOT_BLAMED}[another_thread_sends": (
        "a send of one thread passes another thread's receive on the same group; in NCCL's queue "
        "it stands behind it"
    ),
    f"{NOT_BLAMED}[message_inside_async_collective": (
        "a message passes a collective under way on the same group; in NCCL's queue it stands "
        "behind it"
    ),
    "tests/launch/test_faults.py::test_a_fault_is_named_and_leaves_nothing[both_send_first": (
        "two first messages that are both sends are an error of NCCL's, and no hang; "
        "strict_cases.py has both"
    ),
    "tests/launch/test_faults.py::test_a_log_that_changes_while_it_is_read_proves_no_deadlock": (
        "its program is for gloo: both ranks receive first, and one sends while its receive is open"
    ),
    f"{WARM}::test_a_rank_that_has_returned_still_sends_what_others_wait_for": FORGETS,
    "tests/launch/test_ways_out.py::"
    "test_what_exists_on_ranks_alone_is_recognised_when_it_would_be_sent_back": FORGETS,
    f"{NOT_BLAMED}[receives_from_anyone": "NCCL has no receive from anyone",
} | {f"{CAUSES}::test_a_warning_names_the_cause[{name}": FORGETS for name in (
    "receives_and_forgets", "receives_into_a_list", "reduces_and_forgets",
    "waits_for_the_last_of_its_buckets", "gathers_ahead_and_leaves_early",
    "sends_round_a_ring_and_waits_for_the_receives_alone",
)} | {f"{WARM}::{name}": FRESH for name in (
    "test_what_can_be_put_back_costs_no_new_ranks", "test_fresh_ranks_are_new_and_do_not_stay",
    "test_resting_ranks_take_no_processor_time", "test_sets_end_when_they_have_rested_for_long",
    "test_a_group_that_only_some_ranks_have_made_ends_the_ranks_and_the_next_run_makes_its_own",
    "test_the_set_that_rested_longest_ends_when_memory_gets_short",
    "test_on_gpus_there_is_one_set_at_a_time",
)}  # fmt: skip
EXCLUDED_WITH_BUFFERS = {
    f"{CAUSES}::test_an_error_names_the_cause[receives_in_another_order": (
        "only a send that waits for its receive makes this an error, and with a buffer none does"
    ),
}
