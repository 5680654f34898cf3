"""What training needs, whatever the parallelism: a model, its text, and the parts of a step.

model.py        a small GPT, the model of all labs
text.py         real text as characters, and the batches that ranks draw from it
buckets.py      many small gradients communicated as a few flat tensors
clip.py         clipping by the global norm, wherever the gradients' shards are
recompute.py    activation recomputation
precision       mixed precision: master weights, dynamic loss scaling
checkpoint      checkpoints that all ranks agree on
"""

__all__ = ["buckets", "checkpoint", "clip", "model", "precision", "recompute", "text"]
