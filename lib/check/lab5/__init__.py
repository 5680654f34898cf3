"""Lab 5's graded exercises, one file each."""
