"""Devices of unequal speed: each gets as much work as it can do in the time that the others take,
so that no device waits.

    speed    4  ############      12 rows, 6 each      |######------|         the fast one waits
             2  ######            in proportion        |############|  8
                                                       |############|  4      both are done together

file          what is shared out                          by
------------  ------------------------------------------  ------------------------------------------
shares.py     the rows of a batch, over data ranks        speed, and the rows a rank has memory for
averaging.py  - the gradients, weighted by these shares   one all-reduce per bucket
stages.py     layers, over the stages of a pipeline       speed, memory; which device is which stage
paced.py      - measures what unequal shares are worth    -

    mine = shares(B, speeds)[rank]  # rows of this rank
    average_by_share(model.parameters(), mine / B, group)

Both methods are exact. No other whole numbers of rows and no other split of the layers are faster,
and the gradient is that of the mean loss over all B rows.
"""

from lib.hybrid.unequal.averaging import average_by_share
from lib.hybrid.unequal.paced import paced_steps
from lib.hybrid.unequal.shares import seconds_of_step, shares
from lib.hybrid.unequal.stages import Placed, stages_by_speed, stages_in_any_order

__all__ = [
    "Placed", "average_by_share", "paced_steps", "seconds_of_step", "shares", "stages_by_speed",
    "stages_in_any_order",
]  # fmt: skip
