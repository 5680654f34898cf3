"""Lab 0's graded exercises, one file each."""
