"""Why exercises of Lab 0 leave out some of the adversarial cases (`exercise.ADVERSARIAL`)."""

FUNCTION = {
    "under way": "a function that returns when it is done, and has no backward: no two calls are under way",
    "generators": "no argument is an iterator",
    "memory": "it keeps nothing, and what it sends is counted",
    "attributes": "a function has none",
}
NOTHING_GIVEN = {"given used": "no function is given to it"}
MAY_BE_A_VIEW = {"returned": "for N = 1 the chunk may be a view: the docstring promises no copy"}
IN_PLACE = {"returned": "the caller's tensor holds the result; that it is returned too is a convenience"}
NO_RANKS = (
    FUNCTION
    | NOTHING_GIVEN
    | {
        "precise": "plain numbers",
        "again": "a pure function of numbers, called in many cases",
        "empty rank": "there are no ranks",
        "alone": "there are no ranks",
        "returned": "a number",
    }
)
