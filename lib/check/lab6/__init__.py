"""Lab 6's graded exercises, one file each."""
