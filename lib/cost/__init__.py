"""What training costs, in bytes, operations and seconds. Pure Python: no torch, no ranks.

state.py          bytes of weights, gradients and optimizer state
compute.py        operations per token, and days of training
data_parallel.py  seconds of a step of data parallelism, and how it scales
"""

from lib.cost.compute import training_days
from lib.cost.state import RECIPES, ModelState, model_state_bytes

__all__ = ["RECIPES", "ModelState", "model_state_bytes", "training_days"]
