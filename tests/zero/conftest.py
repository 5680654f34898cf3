"""The tests of ZeRO take models, batches and the comparison with one process from those of
data parallelism."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "data_parallel"))
