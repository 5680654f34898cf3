"""The GPT over tp ranks by torch's DTensor, as the tutorial on `parallelize_module` recommends.
Side: theirs.

                        tensor parallel                   sequence parallel
    token embedding     Rowwise -> replicated             Rowwise -> Shard(1), a rank's tokens
    positions           a plain table                     Rowwise -> Shard(0), a rank's tokens
    norms               plain modules                     SequenceParallel
    attention's input   one DTensor for q, k and v        the same, gathered: Shard(1) -> replicated
    q, k, v; up         Colwise                           Colwise; up gathers as well
    out; down           Rowwise -> replicated             Rowwise -> Shard(1)
    head                Colwise, stays a DTensor          Colwise, gathers as well
    loss                loss_parallel                     loss_parallel

Attention runs on plain tensors with a rank's own heads (`use_local_output`, torch's default). Its
input is made a DTensor once for q, k and v in tensor parallel too. The tutorial does so in sequence
parallel only; without it backward all-reduces three times, and theirs would be slower than it need
be. For the same reason the positions' table stays plain where every rank reads all of it. The tied
head is torch's own way: both are cut, then they are one again.
"""

from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from lib.training.model import cross_entropy


def dtensor_gpt(model, mesh, sequence):
    """`model`, a `lib.training.model.GPT` with a tied head, cut in place over `mesh` of one dim;
    sequence: as the right column.

    The weights that count are rank 0's. The logits are a DTensor, for `backward_of_loss`.
    """
    own_tokens = Shard(1) if sequence else Replicate()
    plan = {
        "embedding.token": RowwiseParallel(input_layouts=Replicate(), output_layouts=own_tokens),
        "head": ColwiseParallel(
            input_layouts=own_tokens, use_local_output=False
        ),  # Shard(-1): by vocabulary
    }
    if sequence:
        plan["embedding.position"] = RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(0)
        )
        plan["norm"] = SequenceParallel()
    parallelize_module(model, mesh, plan)
    for block in model.blocks:
        dtensor_block(block, mesh, sequence)
    model.head.weight = model.embedding.token.weight
    return model


def dtensor_block(block, mesh, sequence):
    """A `lib.training.model.Block`, cut in place: (B, T, D) -> (B, T, D), in sequence
    parallel both (B, T/tp, D)."""
    own_tokens = Shard(1) if sequence else Replicate()
    plan = {
        "attention": PrepareModuleInput(
            input_layouts=own_tokens, desired_input_layouts=Replicate()
        ),
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=own_tokens),
        "mlp.up": ColwiseParallel(input_layouts=own_tokens),
        "mlp.down": RowwiseParallel(output_layouts=own_tokens),
    }
    if sequence:
        plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
    return parallelize_module(block, mesh, plan)


def backward_of_loss(model, tokens, targets):
    """The loss of a `dtensor_gpt`, after its backward: a DTensor of (), replicated."""
    with loss_parallel():
        loss = cross_entropy(model(tokens), targets)
        loss.backward()
    return loss.detach()


def sum_partial_gradients(module):
    """Complete the gradients that DTensor leaves Partial: those of what is whole on all ranks, in
    sequence parallel.

    One all-reduce per parameter, as when an optimizer reads them.
    """
    for parameter in module.parameters():
        grad = parameter.grad
        if isinstance(grad, DTensor) and grad.placements != parameter.placements:
            parameter.grad = grad.redistribute(placements=parameter.placements)


def full(tensor):
    """All of a tensor, DTensor or not, on every rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
