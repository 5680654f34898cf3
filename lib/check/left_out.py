"""Why exercises leave out some of the adversarial cases (`exercise.ADVERSARIAL`)."""

NOTHING_GIVEN = {"given used": "no function is given to it"}
FUNCTION = {
    "under way": "a function that returns when it is done, and has no backward: no two calls are "
    "in flight",
    "generators": "no argument is an iterator",
    "memory": "it keeps nothing, and what it sends is counted",
}
BUILT = FUNCTION | NOTHING_GIVEN  # for functions built from send and receive, or without ranks
IN_PLACE = {
    "returned": "the caller's tensor holds the result; that it is returned too is a convenience"
}
NO_RANKS = BUILT | {
    "precise": "plain numbers",
    "again": "a pure function of numbers, called in many cases",
    "empty rank": "there are no ranks",
    "alone": "there are no ranks",
    "returned": "a number",
}
# why a measure of a function of plain values excuses probes (side_by_side.py)
NO_TENSORS = dict.fromkeys(("strided", "float32", "bfloat16"), "no tensors") | {
    "two at once": "nothing is in flight between two calls"
}
TENSORS = NOTHING_GIVEN | {
    "alone": "there are no ranks; one token and one expert are cases",
    "generators": "no argument is an iterator",
    "memory": "it keeps nothing",
}


def but(reasons, *met):
    """The reasons without those for cases that the exercise does meet."""
    return {name: why for name, why in reasons.items() if name not in met}


LEAVES_OUT = but(NO_RANKS, "again", "returned")  # for functions without ranks that a script calls
