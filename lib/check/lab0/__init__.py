"""Lab 0's graded exercises, one file each, in the order of the notebook."""

from lib.check.lab0 import send_recv

EXERCISES = (send_recv.EXERCISE,)
