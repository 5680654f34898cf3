"""Lab 2's graded exercises, one file each."""
