"""Measurements that can support a claim of the text even on a small, shared machine. Rounds are
repeated until they settle the claim. In many of them layers wait instead of computing, so that two
cores can show what eight devices would do.

rounds.py           repeats rounds until a claim holds, is refuted, or the time is up
predictions.py      prints a student's prediction next to the formula and the measurement
links.py            alpha and beta of a link, and the seconds of all-reduces on ranks
paced.py            layers that wait instead of computing: two cores show what eight devices do
half_layer.py       half a tensor-parallel layer on paced ranks
paced_attention.py  attention under context parallelism on paced ranks
overlap.py          a step over an emulated link: how much of its communication is hidden
scaling.py          steps of more ranks or more rows over an emulated link
traced.py           exposed communication of a wrapper and of torch's DDP, read from their traces
step_memory.py      the bytes of a step's weights, gradients, moments and activations
mfu.py              tokens per second, and model FLOPs utilization
errors.py           how far a tensor is from the correct one; seeded random generators
seeds.py            stored validation losses of several seeds
interrupted.py      a job whose ranks are killed: what failures, saves and restarts cost it
"""

__all__ = [
    "errors", "half_layer", "interrupted", "links", "mfu", "overlap", "paced",
    "paced_attention", "predictions", "rounds", "scaling", "seeds", "step_memory", "traced",
]  # fmt: skip
