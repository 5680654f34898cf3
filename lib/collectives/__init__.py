"""Collectives from send and receive.

N ranks, n elements, L = ceil(log2 N), P the largest power of two up to N.

function                         rounds     elements sent by all  used when
-------------------------------  ---------  --------------------  ----------------------------------
broadcast, reduce                L          (N-1) n               one to all, all to one
scatter, gather                  N-1        n - the root's part   one part per rank, to or from root
ring_all_gather                  N-1        (N-1) n               each rank needs every rank's chunk
ring_reduce_scatter              N-1        (N-1) n               each rank needs its chunk of a sum
all_to_all                       N-1        (N-1) n               a block from each rank to each
all_to_all_at_once               1          (N-1) n               the same, if ranks are not in step
barrier                          L          one byte, N L times   no rank leaves before all arrive
all-reduce:
  star_all_reduce                2(N-1)     2(N-1) n              naive: rank 0 carries it all
  tree_all_reduce                2 L        2(N-1) n              few rounds, few messages
  ring_all_reduce                2(N-1)     2(N-1) n              long tensors
  direct_all_reduce              2(N-1)     2(N-1) n              long tensors, inside a machine
  recursive_doubling_all_reduce  log2 N     n N log2 N            short tensors
  halving_doubling_all_reduce    2 log2 N   2(N-1) n              in between
  hierarchical_all_reduce        two rings  see hierarchical.py   fast links in a node, slow between
  all_reduce                     -          -                     always: it picks one by size

The rows of recursive_doubling and halving_doubling hold for N = P; otherwise replace N by P and add
two rounds and 2(N-P) n elements. Exact formulas: `cost.py`.

Conventions. Ranks are ranks within `group`. `op` is one of torch.distributed.ReduceOp's SUM,
PRODUCT, MAX, MIN, AVG. Chunk r is `tensor_split(N)[r]`, without padding. After an all-reduce all
ranks of the group hold the same bits. `start(fn, *args)` runs any of these functions in the
background. `all_gather` and `reduce_scatter` are the ring versions.

file                 what it is
-------------------  ----------------------------------------------------------------
p2p.py               send, receive, and both at once: all messages of our collectives
uncompiled.py        keeps messages out of the graphs of torch.compile
local.py             what a rank does by itself: combine, split into chunks, flatten
star.py              everything through one rank
tree.py              down and up a binomial tree
ring.py              the two passes of a ring
doubling.py          the full tensor, exchanged log2 N times
halving_doubling.py  exchange halves, quarters, ... and then the same in reverse
direct.py            every chunk directly to its rank, and its total directly to all
hierarchical.py      rings inside nodes, rings between nodes
pairwise.py          all-to-all
dissemination.py     the barrier
auto.py              `all_reduce`, and how it picks (thresholds.json)
background.py        `start`, and the thread that communicates
cost.py              what each of them sends, counted and timed
contents.py          which ranks' values the messages of an all-reduce contain, for figures
shown.py             eight collectives of PyTorch on marked values, for figures
slow_link.py         a slow link between "nodes" of one machine

`# exercise: lab.name` marks what students write in that lab (lib/README.md).
"""

from lib.collectives.auto import all_reduce
from lib.collectives.background import Work, start
from lib.collectives.direct import direct_all_reduce
from lib.collectives.dissemination import barrier
from lib.collectives.doubling import recursive_doubling_all_reduce
from lib.collectives.halving_doubling import halving_doubling_all_reduce
from lib.collectives.hierarchical import hierarchical_all_reduce, node_groups
from lib.collectives.pairwise import all_to_all, all_to_all_at_once
from lib.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from lib.collectives.star import gather, scatter, star_all_reduce
from lib.collectives.tree import broadcast, reduce, tree_all_reduce

all_gather = ring_all_gather
reduce_scatter = ring_reduce_scatter

__all__ = [
    "Work", "all_gather", "all_reduce", "all_to_all", "all_to_all_at_once", "barrier", "broadcast",
    "direct_all_reduce", "gather", "halving_doubling_all_reduce", "hierarchical_all_reduce",
    "node_groups", "recursive_doubling_all_reduce", "reduce", "reduce_scatter", "ring_all_gather",
    "ring_all_reduce", "ring_reduce_scatter", "scatter", "star_all_reduce", "start",
    "tree_all_reduce",
]  # fmt: skip
