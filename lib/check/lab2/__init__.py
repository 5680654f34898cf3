"""Lab 2's graded exercises, one file each, in the order of the notebook."""

from lib.check.lab2 import balance, gpipe, interleaved, one_f_one_b, zb_h1

EXERCISES = (
    balance.EXERCISE,
    gpipe.EXERCISE,
    one_f_one_b.EXERCISE,
    interleaved.EXERCISE,
    zb_h1.EXERCISE,
)
