"""The tests of meshes take the model and the comparison with one process from those of
tensor parallelism."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tensor_parallel"))
