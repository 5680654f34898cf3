"""Our implementations compared with the libraries you will use: each trains one small GPT, and we
compare losses, memory and volume.

    ours         data parallelism, Zero1, Zero2, PrefetchingFSDP
    FSDP2        torch's fully_shard: stage 3
    DeepSpeed    ZeRO at stages 0 to 3: an optional extra, `make setup EXTRAS=deepspeed`

    for line in beside.table(beside.results()):
        print(line)

file                what it is
------------------  --------------------------------------------------------------------
job.py              the run that all make, and what is noted along the way
sides.py            ours and torch's
deepspeed_zero.py   DeepSpeed: its settings, what it keeps besides, and why
volume.py           what a collective sends, by rings
rows.py             the rows: run here, or DeepSpeed's as stored
table.py            the rows as a table
deepspeed.json      DeepSpeed's rows, stored; `python -m lib.demo.beside` measures them anew
"""

from lib.demo.beside.job import SHAPE, STEPS, Row
from lib.demo.beside.rows import deepspeed_rows, installed, our_rows, results, stored
from lib.demo.beside.table import table

__all__ = [
    "SHAPE", "STEPS", "Row", "deepspeed_rows", "installed", "our_rows", "results", "stored",
    "table",
]  # fmt: skip
