"""`make demo`: four ranks train one GPT by data parallelism, written out in the plainest way, and prove what they did.

    rank 0   batch 0 -> loss, gradients --+
    rank 1   batch 1 -> loss, gradients --+-- ring all-reduce, / N --> the same mean gradient --> the same AdamW step
    rank 2   batch 2 -> loss, gradients --+
    rank 3   batch 3 -> loss, gradients --+

Each step every rank lays its gradients end to end in one buffer of n numbers, and the ring sums the buffers. Then the
claims: the loss falls below the entropy of the text; the first losses are those of one process on the whole batch; all
ranks end with the same parameters; each rank sent 2(N-1)/N * n numbers per step, no more and no fewer.

    python -m lib.demo --ranks 4 --seconds 60 --out results/demo [--steps 200] [--text FILE]
"""

import argparse
import hashlib
import itertools
import json
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

from lib import launch, plots
from lib import text as texts
from lib.collectives import ring_all_reduce
from lib.model import GPT, Shape

SEQ_LEN = 64  # T
PER_RANK = 8  # sequences of each rank in each step
PEAK_LR = 4e-3
COMPARED = 3  # steps that one process repeats


def shape_for(text):
    """The GPT of the demo: small enough for two shared cores, large enough to learn words in a minute."""
    return Shape(vocab_size=len(text.vocabulary), seq_len=SEQ_LEN, n_layers=2, hidden=64, n_heads=4)


def optimizer_for(model):
    return torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.05)


def buffer_size(model, world_size):
    """n: a number for each parameter, one for the loss, one for the clock, and zeros until N divides it."""
    n = model.num_parameters() + 2
    return n + -n % world_size


# --- on the ranks ----------------------------------------------------------------------------------------------------


def train(text, seconds, steps, progress):
    """One rank's run, until `seconds` have passed or `steps` are done (the other is None).

    Sends: one ring all-reduce of `buffer_size` numbers per step, and nothing else.
    progress: a file to which rank 0 adds a line per step. Returns what this rank knows, as a dict.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = GPT(shape_for(text))
    optimizer = optimizer_for(model)
    flat = torch.zeros(buffer_size(model, world_size))  # (n,)  gradients, loss, clock, padding
    losses, rates, validation, first_means = [], [], [], []
    began = time.monotonic()

    for step in itertools.count():
        loss = loss_and_gradients(model, text, step, PER_RANK * world_size, rank, world_size)
        # How much of the run is over. Clocks differ between ranks, and a rank that stopped a step early would leave
        # the others waiting for ever: so the clocks are averaged too, and all ranks act on the same number.
        clock = (step + 1) / steps if steps else (time.monotonic() - began) / seconds

        numbers = torch.cat(
            [p.grad.flatten() for p in model.parameters()] + [torch.stack([loss, loss.new_tensor(clock)])]
        )
        flat[: len(numbers)] = numbers
        ring_all_reduce(flat)
        flat /= world_size  # the sum over ranks becomes their mean: the gradient of the whole batch
        *means, mean_loss, clock, _ = flat.split(
            [p.numel() for p in model.parameters()] + [1, 1, len(flat) - len(numbers)]
        )
        for p, mean in zip(model.parameters(), means, strict=True):
            p.grad.copy_(mean.view_as(p))

        used = clock.item()
        over = used > 1 - 1e-6
        if over or used >= len(validation) / 10:  # before the update, as the training loss is: both start at ln V
            validation.append((step, validation_loss(model, text, rank, world_size)))
        rates.append(PEAK_LR * min(1.0, (step + 1) / 20) * (1 - 0.95 * min(used, 1.0)))  # warm up, then down to 5 %
        update(optimizer, rates[-1])

        losses.append(mean_loss.item())
        if step < COMPARED and rank == 0:
            first_means.append(flat[: model.num_parameters()].clone())
        if rank == 0:
            with open(progress, "a") as file:
                file.write(f"{min(used, 1.0)} {step + 1} {losses[-1]}\n")
        if over:
            break

    values = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    return {
        "losses": losses,  # of the whole batch, the same on every rank
        "rates": rates,
        "validation": validation,  # [(step, loss)] on this rank's share
        "seconds": time.monotonic() - began,
        "hash": hashlib.sha256(values).hexdigest()[:12],
        "first_means": first_means,  # rank 0: the averaged gradients of the first steps, each (parameters,)
        "state": model.state_dict() if rank == 0 else None,
    }


def loss_and_gradients(model, text, step, batch_size, rank=0, world_size=1):
    """Forward and backward on one rank's share of the step's batch; the loss, detached."""
    tokens, targets = texts.batch(text.train, step, rank, world_size, batch_size, SEQ_LEN)  # (batch_size/N, T)
    model.zero_grad()
    loss = model.loss(tokens, targets)
    loss.backward()
    return loss.detach()


def update(optimizer, rate):
    for settings in optimizer.param_groups:
        settings["lr"] = rate
    optimizer.step()


@torch.no_grad()
def validation_loss(model, text, rank, world_size):
    """The mean loss on this rank's share of always the same sequences."""
    tokens, targets = texts.batch(text.validation, 0, rank, world_size, 2 * PER_RANK * world_size, SEQ_LEN)
    return model.loss(tokens, targets).item()


# --- in the parent ---------------------------------------------------------------------------------------------------


def one_process(text, ranks, rates):
    """The first steps without ranks, the whole batch at once, at the same learning rates: losses and gradients."""
    model = GPT(shape_for(text))
    optimizer = optimizer_for(model)
    losses, gradients = [], []
    for step, rate in enumerate(rates):
        losses.append(loss_and_gradients(model, text, step, PER_RANK * ranks).item())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        update(optimizer, rate)
    return losses, gradients


@torch.no_grad()
def write_on(model, text, length=240):
    """Let the model continue the first words of the validation text: its own characters, drawn at temperature 0.7."""
    tokens = text.validation[:SEQ_LEN]  # (T,)
    generator = torch.Generator("cpu").manual_seed(0)
    for _ in range(length):
        logits = model(tokens[None, -SEQ_LEN:])[0, -1]  # (V,)
        tokens = torch.cat([tokens, torch.multinomial((logits / 0.7).softmax(-1), 1, generator=generator)])
    return text.decode(tokens[SEQ_LEN:])


def show_progress(path, finished):
    """Draw a bar in a terminal, or print a line for every fifth of the run elsewhere, from what rank 0 wrote."""
    terminal = sys.stdout.isatty()
    bar = tqdm(
        total=100, disable=not terminal, file=sys.stdout, leave=False, ncols=80, nrows=10,
        bar_format="  training {bar} {percentage:3.0f} %{postfix}",
    )  # fmt: skip
    told = 0.0
    last = False
    while not last:
        last = finished.wait(0.25)
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and len(lines[-1].split()) == 3:
            used, step, loss = map(float, lines[-1].split())
            bar.set_postfix_str(f"step {step:.0f}, loss {loss:.2f}", refresh=False)
            bar.update(100 * used - bar.n)
            if not terminal and (used >= told + 0.2 or (used == 1 and told < 1)):
                told = used
                print(f"  training {100 * used:3.0f} %   step {step:4.0f}   loss {loss:.2f}", flush=True)
    bar.close()


def run(text, ranks, seconds, steps):
    """Launch the ranks, showing progress; the results of all ranks, with their ledger."""
    with tempfile.TemporaryDirectory() as folder:
        progress, finished = Path(folder) / "progress", threading.Event()
        watcher = threading.Thread(target=show_progress, args=(progress, finished))
        watcher.start()
        try:
            timeout = 60 + 2 * seconds if seconds else 24 * 3600
            return launch.capture(train, text, seconds, steps, str(progress), nproc=ranks, timeout=timeout)
        finally:
            finished.set()
            watcher.join()


def report(text, ranks, results, out):
    """Print each claim with its numbers, write figures and demo.json into `out`; True if every claim holds."""
    first = results[0]
    steps, entropy = len(first["losses"]), text.entropy
    model = GPT(shape_for(text))
    model.load_state_dict(first["state"])

    at = [step for step, _ in first["validation"]]
    shares = [[loss for _, loss in r["validation"]] for r in results]
    validation = [sum(one) / ranks for one in zip(*shares, strict=True)]
    learned = validation[-1] < entropy
    print("\n1. Does it learn?  (nats per character)")
    print(f"   training loss    {first['losses'][0]:.2f} -> {first['losses'][-1]:.2f} in {steps} steps")
    print(f"   validation loss  {validation[0]:.2f} -> {validation[-1]:.2f}")
    print(
        f"   unigram entropy  {entropy:.2f}, the best without context: {verdict(learned, 'below it', 'NOT BELOW IT')}"
    )

    alone, gradients = one_process(text, ranks, first["rates"][:COMPARED])
    pairs = list(zip(first["first_means"], gradients, strict=True))
    apart = max(((mean - one).abs().max() / one.abs().max()).item() for mean, one in pairs)
    losses_apart = max(abs(a - b) for a, b in zip(alone, first["losses"][:COMPARED], strict=True))
    same = apart < 1e-4 and losses_apart < 1e-4
    print("\n2. Is it what one process would train on the whole batch?")
    print(f"   {ranks} ranks, first losses    {'  '.join(f'{x:.5f}' for x in first['losses'][:COMPARED])}")
    print(f"   1 process, first losses  {'  '.join(f'{x:.5f}' for x in alone)}   {verdict(losses_apart < 1e-4)}")
    print(f"   all gradients            apart by {apart:.0e} of the largest at most   {verdict(apart < 1e-4)}")

    n = buffer_size(model, ranks)
    formula = 2 * (ranks - 1) * n // ranks * 4 * steps
    sent = [results.ledger.sent("bytes", rank) for rank in range(ranks)]
    hashes = [r["hash"] for r in results]
    print("\n3. Do all ranks end with the same parameters, and what did each send?")
    print(f"   formula: 2(N-1)/N * n * 4 bytes * {steps} steps, n = {n:,} gradients, loss, clock and padding")
    print("   rank   hash of parameters     bytes, formula      bytes, ledger")
    for rank in range(ranks):
        print(f"   {rank:<6} {hashes[rank]:<18} {formula:>18,} {sent[rank]:>18,}   {verdict(sent[rank] == formula)}")
    print(f"   parameters of all ranks: {verdict(len(set(hashes)) == 1)}")

    speed = steps * PER_RANK * ranks * SEQ_LEN / first["seconds"]
    print(f"\n4. What does it write by now?  ({speed:,.0f} tokens per second for {first['seconds']:.0f} s)")
    sample = write_on(model, text)
    print("\n".join(f"   | {part}" for line in sample.splitlines() for part in textwrap.wrap(line, 76)))

    matrix = results.ledger.matrix("bytes")
    validated = {"validation": (at, validation)}
    plots.loss_curve(range(steps), first["losses"], entropy, validated).save(out / "loss.png")
    plots.traffic_matrix(matrix, "bytes").save(out / "traffic.png")
    record = {
        "ranks": ranks,
        "steps": steps,
        "seconds": first["seconds"],
        "tokens_per_second": speed,
        "text": {"characters": len(text.tokens), "distinct": len(text.vocabulary), "entropy_nats": entropy},
        "parameters": model.num_parameters(),
        "loss": {
            "training": first["losses"],
            "validation": list(zip(at, validation, strict=True)),
            "below_entropy": learned,
        },
        "one_process": {"losses": alone, "losses_apart": losses_apart, "gradients_apart": apart, "equal": same},
        "hashes": {"by_rank": hashes, "equal": len(set(hashes)) == 1},
        "traffic": {
            "n": n,
            "formula_bytes_per_rank": formula,
            "ledger_bytes_per_rank": sent,
            "matrix_bytes": matrix.tolist(),
            "equal": set(sent) == {formula},
        },
        "sample": sample,
    }
    (out / "demo.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"\nin {out}: loss.png  traffic.png  demo.json")
    return all(record[claim]["equal"] for claim in ("one_process", "hashes", "traffic"))


def verdict(holds, yes="equal", no="NOT EQUAL"):
    return yes if holds else no


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m lib.demo", description="Train a small GPT on several ranks.")
    parser.add_argument("--ranks", type=int, default=4, help="how many ranks (4)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, help="how long to train (60)")
    length.add_argument("--steps", type=int, help="train this many steps instead")
    parser.add_argument("--text", metavar="FILE", help="your own UTF-8 text (default: Python's help pages)")
    parser.add_argument("--out", type=Path, default=Path("results/demo"), help="folder for the results")
    options = parser.parse_args(arguments)
    if options.seconds is None and options.steps is None:
        options.seconds = 60.0
    for name in ("ranks", "seconds", "steps"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} {value:g} leaves nothing to run: use 1 or more")
    try:
        text = texts.load(options.text)
        options.out.mkdir(parents=True, exist_ok=True)
    except (FileNotFoundError, ValueError) as error:
        parser.error(f"--text: {error}")
    except (FileExistsError, NotADirectoryError):
        parser.error(f"--out {options.out}: there is a file of that name, give a folder")

    model = GPT(shape_for(text))
    print(f"{options.ranks} ranks train one GPT by data parallelism")
    print(f"   text    {len(text.tokens):,} characters, {len(text.vocabulary)} different; unigram entropy", end=" ")
    print(f"{text.entropy:.2f} nats = {text.entropy_bits:.2f} bits per character")
    print(
        f"   model   {model.num_parameters():,} parameters: {model.shape.n_layers} layers, hidden {model.shape.hidden}"
    )
    print(f"   batch   {options.ranks} ranks x {PER_RANK} sequences x {SEQ_LEN} characters; then one ring all-reduce")
    print("           of all gradients, and every rank takes the same step\n", flush=True)
    try:
        results = run(text, options.ranks, options.seconds, options.steps)
    except KeyboardInterrupt:
        print("\nstopped; no rank is left running")
        return 130
    except launch.RankError as error:  # the verdict says which rank and line; a traceback of lib adds nothing
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0 if report(text, options.ranks, results, options.out) else 1


if __name__ == "__main__":
    sys.exit(main())
