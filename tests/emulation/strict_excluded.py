"""Tests that do not run under NCCL's rules, each with the reason. Not for what fails because lib is wrong there.

An id is a prefix of pytest's, without parameters or with.
"""

NOT_BLAMED = "tests/launch/test_faults.py::test_slow_but_correct_programs_are_not_blamed"
EXCLUDED = {
    "tests/collectives/test_contents.py::test_torchs_own_sends_are_traced_too_and_what_the_rank_held_by_then": (
        "its own ring is for gloo: isend, then recv, unbatched, which hangs in NCCL without buffers (threshold 0)"
    ),
    "tests/zero/test_zero_memory.py": (
        "counts every storage that lives; the rules keep private copies of what is under way, which a GPU has not"
    ),
    f"{NOT_BLAMED}[another_thread_sends": (
        "a send of one thread passes another thread's receive on the same group; in NCCL's queue it stands behind it"
    ),
    f"{NOT_BLAMED}[message_inside_async_collective": (
        "a message passes a collective under way on the same group; in NCCL's queue it stands behind it"
    ),
    "tests/launch/test_faults.py::test_a_fault_is_named_and_leaves_nothing[both_send_first": (
        "two first messages that are both sends are an error of NCCL's, and no hang; strict_cases.py has both"
    ),
    "tests/launch/test_faults.py::test_a_book_that_changes_while_it_is_read_proves_no_deadlock": (
        "its program is for gloo: both ranks receive first, and one sends while its receive is open"
    ),
    "tests/launch/test_causes.py::test_a_warning_names_the_cause": (
        "its programs forget to wait, which the rules refuse while they run; the ledger warns after the run"
    ),
    "tests/launch/test_causes.py::test_an_error_names_the_cause[receives_in_another_order": (
        "only a send that waits for its receive makes this an error, and with a buffer (threshold inf) none does"
    ),
    "tests/launch/test_ways_out.py::test_what_exists_on_ranks_alone_is_recognised_when_it_would_be_sent_back": (
        "one of its programs returns a work that it has not waited for, which the rules refuse"
    ),
    "tests/launch/test_warm.py": (
        "the rules begin when a rank joins, so every launch has fresh ranks; `tags reuse` is about ranks used again"
    ),
    f"{NOT_BLAMED}[receives_from_anyone": ("NCCL has no receive from anyone"),
}
