"""From measured times to lib/collectives/thresholds.json: which all-reduce algorithm up to how many
bytes.

    1 KB      16 KB      256 KB     4 MB            sizes measured
     rd         rd         hd        ring           clearly fastest there
     [.. up to 64 KB rd] [.. up to 1 MB hd] [ring]  the border: half way between two sizes,
                                                    on a log scale

An algorithm gives way only to one that is clearly faster, the whole interval of the paired ratio
below CLEARLY: a border must not be where two equally fast ones happened to change places.
"""

import itertools
import json
import math
import pathlib

import numpy as np

from lib.collectives import auto
from lib.measuring.rounds import interval

CLEARLY = 0.97  # under 3 % the next run may say the opposite
FILE = pathlib.Path(auto.__file__).with_name("thresholds.json")


def write(times, path=FILE):
    """times: {ranks: {algorithm: {bytes: (rounds,) seconds}}}. Replaces the file."""
    lines = [f'    "{N}": {json.dumps(rows_for(times[N]))}' for N in sorted(times)]
    path.write_text('{\n  "all_reduce": {\n' + ",\n".join(lines) + "\n  }\n}\n")


def rows_for(times):
    """[[up to so many bytes, algorithm], ..., [None, algorithm]] of {algorithm: {bytes:
    (rounds,) seconds}}."""
    sizes = sorted(next(iter(times.values())))
    fastest = lambda s: min(times, key=lambda name: np.median(times[name][s]))
    rows, current = [], fastest(sizes[0])
    for before, here in itertools.pairwise(sizes):
        challenger = fastest(here)
        if interval(times[challenger][here] / times[current][here]).high < CLEARLY:
            rows.append([math.isqrt(before * here), current])
            current = challenger
    return [*rows, [None, current]]
