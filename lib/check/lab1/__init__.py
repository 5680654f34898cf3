"""Lab 1's graded exercises, one file each."""
