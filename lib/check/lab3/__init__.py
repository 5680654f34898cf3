"""Lab 3's graded exercises, one file each."""
