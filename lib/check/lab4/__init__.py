"""Lab 4's graded exercises, one file each."""
