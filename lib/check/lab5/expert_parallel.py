"""Lab 5, section 6: exchange_rows, rows to the ranks they are for, and the class ExpertParallelMoE, which uses it.

The two are judged apart: the class exchanges with lib's exchange_rows.
"""

from lib.check.framework import Bundle
from lib.check.lab5.ep_exchange import EXCHANGE_ROWS
from lib.check.lab5.ep_layer import EXPERT_PARALLEL_MOE

EXERCISE = Bundle("expert_parallel", (EXCHANGE_ROWS, EXPERT_PARALLEL_MOE))
