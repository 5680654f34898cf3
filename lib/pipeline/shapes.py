"""Shape inference: the shapes of all messages of a pipeline, found before its first run.

    rank 0  (2, 8) int64 --stage 0--> (2, 8, 64) --+
    rank 1                                         +-> (2, 8, 64) --stage 1--> (2, 8, 64) --+
    rank 2                                                                                  +-> ...

A receiver must know how large the message is, because only its elements are sent. A stage cannot
know the shape of the previous stage's output, and the last micro-batch may be smaller than the
others. So once, before the first run, the shapes are sent down the pipeline. Each stage computes on
zeros of the shape that it received, and sends the next stage the shape of its output. It really
computes, because the shapes alone do not show what a stage does (it may be tensor-parallel, for
example). torch.distributed.pipelining calls this shape inference, too.

A stage runs one forward for each different shape, without a graph, and in evaluation mode, so that
dropout draws no random numbers and running averages do not change. A gradient has the shape of
its activation, so backward is not run.
"""

import contextlib

import torch
from torch import nn

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MAX_DIMS = 8  # of a tensor between two stages


def infer_shapes(stages, links, stage_ranks, microbatches):
    """{(stage, micro-batch): (shape, dtype) of that stage's output}, for this rank's stages and
    those before them.

    stages: {stage: module}, this rank's. stage_ranks: [rank of stage 0, 1, ...] in the pipeline.
    microbatches: a tensor each on the rank of stage 0; elsewhere only their number is used.
    Sends: for each two neighbouring stages on different ranks one message, int64 (m, 10).
    Raises ValueError for a stage that returns anything but a tensor of at most MAX_DIMS dims with
    one of DTYPES.
    """
    m, outputs = len(microbatches), {}
    for stage in sorted(stages):
        if stage == 0:
            inputs = [(x.shape, x.dtype) for x in microbatches]
        else:
            if stage_ranks[stage - 1] != links.rank:
                table = torch.empty(m, 2 + MAX_DIMS, dtype=torch.int64)
                links.receive(table, stage_ranks[stage - 1]).wait()
                outputs.update({(stage - 1, j): _read(row) for j, row in enumerate(table.tolist())})
            inputs = [outputs[stage - 1, j] for j in range(m)]
        # one forward for each different (shape, dtype)
        output_for = {
            x: _forward(stages[stage], stage, torch.zeros(x[0], dtype=x[1]))
            for x in dict.fromkeys(inputs)
        }
        outputs.update({(stage, j): output_for[x] for j, x in enumerate(inputs)})
        if stage < len(stage_ranks) - 1 and stage_ranks[stage + 1] != links.rank:
            table = torch.tensor([_write(*outputs[stage, j]) for j in range(m)])
            links.send(table, stage_ranks[stage + 1]).wait()
    return outputs


def _forward(module, stage, x):
    with torch.no_grad(), evaluating(module):
        y = module(x)
    if not isinstance(y, torch.Tensor) or y.dtype not in DTYPES or y.dim() > MAX_DIMS:
        said = f"{y.dtype} {tuple(y.shape)}" if isinstance(y, torch.Tensor) else type(y).__name__
        raise ValueError(
            f"stage {stage} returns {said} for {tuple(x.shape)}: a stage returns one tensor, of a "
            f"floating-point dtype and at most {MAX_DIMS} dims"
        )
    return y.shape, y.dtype


@contextlib.contextmanager
def evaluating(module: nn.Module):
    """A context in which `module` is in evaluation mode; afterwards each submodule is in the mode
    that it was in before."""
    before = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in before.items():
            part.training = training


def _write(shape, dtype):
    return [DTYPES.index(dtype), len(shape), *shape] + [0] * (MAX_DIMS - len(shape))


def _read(row):
    dtype, n_dims, *dims = row
    return torch.Size(dims[:n_dims]), DTYPES[dtype]
