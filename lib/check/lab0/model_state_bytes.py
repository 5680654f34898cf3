"""Lab 0, section 1: model_state_bytes(parameters, precision), the memory that training needs for
the model state."""

from lib.check.causes import hints
from lib.check.left_out import NO_RANKS
from lib.check.numbers import numbers
from lib.cost.state import RECIPES, model_state_bytes

GPT3 = 175_000_000_000
CASES = [(parameters, precision) for precision in RECIPES for parameters in (GPT3, 1, 124_439_808)]
MEASURE, about = numbers(
    model_state_bytes, CASES, lambda n, precision: f'model_state_bytes({n}, "{precision}")', "bytes"
)
EXERCISE = MEASURE.exercise(
    ("fp32 and mixed", 2, "GPT-3's 175 billion parameters: 2,800,000,000,000 bytes",
     about((GPT3, "fp32"), (GPT3, "mixed"))),
    ("mixed with fp32 gradients", 1, "3,150,000,000,000 bytes",
     about((GPT3, "mixed, fp32 gradients"))),
    ("bf16 alone", 1, "1,400,000,000,000 bytes", about((GPT3, "bf16"))),
    ("any number of parameters", 2, "1; GPT-2's 124,439,808"),
    hints=hints("lab0", "model_state_bytes"), leaves_out=NO_RANKS,
)  # fmt: skip
