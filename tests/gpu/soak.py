"""Soak: what overlaps trains as one process does, again and again, with random sleeps on either
stream.

    compute stream        [ sleep ][ block 0 ][ sleep ][ block 1 ] ...
                          by hooks before and after every block
    communication stream  [ sleep ][ gather ]  [ sleep ][ reduce ] ...
                          around every work of collectives.start

torch.cuda._sleep keeps a stream busy and the host free, so a wait that is missing between two
streams shows as a wrong number. After each sleep memory is taken, filled with NaN and given back:
the allocator hands out what it thinks free, and if another stream still reads there, the NaN is
found. On the CPU nothing sleeps and the same code runs.
"""

import argparse
import functools
import random
import sys

import torch
import torch.distributed as dist

from lib import backend, launch
from lib.collectives import background
from lib.data_parallel import OverlappedDataParallel
from lib.moe import MoEGPT, expert_parallel_gpt, top_k_gate
from lib.training.model import GPT, Shape, cross_entropy
from lib.zero import PrefetchingFSDP, Zero2

SHAPE = Shape(vocab_size=32, seq_len=16, n_layers=4, hidden=64, n_heads=4)
ROWS = 2  # sequences of a rank
CAPACITY = 256 * 1024  # bytes of a bucket: several leave in a step
TOLERANCE = 1e-11  # float64, relative to a parameter's largest number
LEAST = 1e-3
REFUSED = "in use in the background"  # lib's answer on the CPU to a work that is not waited for
CYCLES = 4_000_000  # of a sleep at most: about 2 ms


def sgd(groups):
    return torch.optim.SGD(groups, lr=0.1)


class Sleeps:
    """Random sleeps and NaN on the current stream, drawn from `seed`: two ranks
    sleep differently."""

    def __init__(self, seed):
        self.draw, self.count = random.Random(seed), 0

    def __call__(self, *_):
        self.count += 1
        device = backend.device()
        if device.type == "cuda" and self.draw.random() < 0.5:
            torch.cuda._sleep(self.draw.randrange(CYCLES))
        torch.full(
            (self.draw.choice([100, 4096, 60_000]),), torch.nan, dtype=torch.float64, device=device
        )

    def round_works(self):
        """Sleep before and after every work of the communication thread, on its stream."""
        plain = background.Work.__init__

        def made(work, fn, args, kwargs):
            @functools.wraps(fn)
            def late(*args, **kwargs):
                self()
                out = fn(*args, **kwargs)
                self()
                return out

            plain(work, late, args, kwargs)

        background.Work.__init__ = made

    def round_blocks(self, model):
        for block in model.blocks:
            block.register_forward_pre_hook(self)
            block.register_forward_hook(self)
            block.register_full_backward_hook(self)
        return model


def batch(seed, rows):
    draw = torch.Generator("cpu").manual_seed(seed)
    tokens = torch.randint(
        SHAPE.vocab_size, (rows, SHAPE.seq_len + 1), generator=draw, device="cpu"
    )
    tokens = tokens.to(backend.device())
    return tokens[:, :-1], tokens[:, 1:]


def trained(kind, model, steps, share):
    """The parameters after `steps` steps on this rank's share of the rows, as copies."""
    if kind == "Overlapped":
        net = OverlappedDataParallel(model, capacity=CAPACITY)
        average, optimizer = net.average_gradients, sgd(net.parameters())
    elif kind == "Zero2":
        net, optimizer = model, Zero2(model.parameters(), sgd, capacity=CAPACITY)
        average = optimizer.average_gradients
    elif kind == "Prefetching":
        net = PrefetchingFSDP(model, model.blocks)
        average, optimizer = net.average_gradients, sgd(net.groups)
    else:
        net, average, optimizer = model, lambda: None, sgd(model.parameters())
    rank, world_size = share
    for step in range(steps):
        optimizer.zero_grad()
        tokens, targets = (
            x.chunk(world_size)[rank] for x in batch(step, ROWS * dist.get_world_size())
        )
        cross_entropy(net(tokens), targets).backward()
        average()
        optimizer.step()
    if kind == "Prefetching":
        with net.unsharded():
            return [p.detach().clone() for p in model.parameters()]
    return [p.detach().clone() for p in model.parameters()]


def off(ours, right):
    """The largest difference, relative to the parameter's largest number; infinite where a NaN got
    in.

    The key bias has no gradient but rounding, and begins at 0: nothing is compared to less than
    LEAST.
    """
    pairs = zip(ours, right, strict=True)
    worst = max(((a - b).abs().max() / b.abs().max().clamp(min=LEAST)).item() for a, b in pairs)
    return worst if worst == worst else float("inf")


def experts(sleeps):
    """Gradients of a GPT with experts, each with its two best: twice the same bits, though
    atomics add them up?"""
    torch.manual_seed(0)
    gate = functools.partial(top_k_gate, k=2)
    model = expert_parallel_gpt(
        MoEGPT(SHAPE, 2 * dist.get_world_size(), gate=gate, factor=1.0).double()
    )
    sleeps.round_blocks(model)
    model.loss(*batch(dist.get_rank(), ROWS)).backward()
    return [
        p.grad.clone() for p in model.parameters() if p.grad is not None and p.grad.abs().max() > 0
    ]


def forgotten(work, plain=background.Work.wait):
    """A wait that forgets what it is for: on a GPU the stream does not wait. On the CPU
    none does: lib refuses."""
    if work.gpu is None:
        return work.result
    work.ended.wait()  # as the real one: until then the communication thread asks for its GPU
    work.gpu = None
    return plain(work)


def on_ranks(times, steps, never_wait):
    """{kind: (the worst of so many times, how often it was not the same as the first
    time)}, sleeps"""
    if never_wait:
        background.Work.wait = forgotten
    sleeps, seen = Sleeps(seed=dist.get_rank()), {}
    right = trained("one process", GPT(SHAPE).double(), steps, (0, 1))
    first_experts = experts(Sleeps(seed=0))
    sleeps.round_works()
    share = (dist.get_rank(), dist.get_world_size())
    for kind in ("Overlapped", "Zero2", "Prefetching", "experts"):
        worst, odd, first = 0.0, 0, None
        for _ in range(times):
            got = experts(sleeps) if kind == "experts" else trained(
                kind, sleeps.round_blocks(GPT(SHAPE).double()), steps, share
            )  # fmt: skip
            first = first or got
            worst = max(worst, off(got, first_experts if kind == "experts" else right))
            odd += not all(torch.equal(a, b) for a, b in zip(got, first, strict=True))
        seen[kind] = worst, odd
    return seen, sleeps.count


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.soak")
    parser.add_argument("--backend", default="nccl-shared")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--times", type=int, default=20, help="how often each is trained anew")
    parser.add_argument("--steps", type=int, default=3, help="steps of a training")
    parser.add_argument(
        "--never-wait",
        action="store_true",
        help="streams do not wait for works: passes if wrong values are then seen",
    )
    options = parser.parse_args(argv)
    how = {"nproc": options.ranks, "backend": options.backend, "timeout": 600, "ledger": False}
    try:
        results = launch.capture(on_ranks, options.times, options.steps, options.never_wait, **how)
    except launch.RankError as error:
        print(error, f"showed: {str(error).splitlines()[0]}", sep="\n")
        return (
            0 if options.never_wait and options.backend == "gloo" and REFUSED in str(error) else 1
        )
    said, right = [], True
    for kind in results[0][0]:
        worst, odd = (max(seen[kind][i] for seen, _ in results) for i in (0, 1))
        right &= worst < TOLERANCE
        said.append(
            f"{kind} {worst:.0e} off" + f", {odd} of {options.times} with other bits" * bool(odd)
        )
    if options.never_wait:
        said.append(
            "NO WRONG VALUE WAS SEEN, so this soak finds nothing"
            if right
            else "so a missing wait is seen"
        )
    print(
        f"showed: {'; '.join(said)}; {options.times} times {options.steps} steps, {results[0][1]} "
        f"sleeps on rank 0"
    )
    return 0 if right != options.never_wait else 1


if __name__ == "__main__":
    sys.exit(main())
