"""Why Lab 5's functions without ranks leave out some of the adversarial cases (`exercise.ADVERSARIAL`)."""

TENSORS = {
    "alone": "there are no ranks; one token and one expert are cases",
    "generators": "no argument is an iterator",
    "given used": "no function is given to it",
    "memory": "it keeps nothing",
    "attributes": "a function has none",
}
