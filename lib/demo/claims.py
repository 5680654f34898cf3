"""Checks the demo's claims about its run. Each claim is printed with its numbers and written to
demo.json; the loss and the traffic are drawn as well."""

import json
import textwrap

import torch

from lib import plots
from lib.demo.on_ranks import (
    COMPARED,
    PER_RANK,
    SEQ_LEN,
    buffer_size,
    loss_and_gradients,
    optimizer_for,
    shape_for,
    update,
)
from lib.measuring.errors import error
from lib.training.model import GPT


def one_process(text, ranks, rates):
    """The single-process baseline: the first steps on the full batch, at the same learning rates.
    Returns (losses, flat gradients), one of each per step.

    ranks: how many ranks the run has, because the size of the batch depends on it. rates: one
    learning rate per step.
    """
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
    """The `length` characters with which the model continues the first SEQ_LEN characters of the
    validation text, sampled at temperature 0.7."""
    tokens = text.validation[:SEQ_LEN]  # (T,)
    generator = torch.Generator("cpu").manual_seed(0)
    for _ in range(length):
        logits = model(tokens[None, -SEQ_LEN:])[0, -1]  # (V,)
        tokens = torch.cat(
            [tokens, torch.multinomial((logits / 0.7).softmax(-1), 1, generator=generator)]
        )
    return text.decode(tokens[SEQ_LEN:])


def report(text, ranks, results, out):
    """Print each claim with its numbers, and write two figures and demo.json into the folder `out`.

    results: what `train` returned on each rank, with the run's ledger. Returns True if the claims
    printed under 2 and 3 hold. Claim 1, that the model has learned, does not affect the result,
    because learning takes more than a few steps.
    """
    first = results[0]
    steps, entropy = len(first["losses"]), text.entropy
    model = GPT(shape_for(text))
    model.load_state_dict(first["state"])

    at = [step for step, _ in first["validation"]]
    shares = [[loss for _, loss in r["validation"]] for r in results]
    validation = [sum(one) / ranks for one in zip(*shares, strict=True)]
    learned = validation[-1] < entropy
    print("\n1. Does it learn?  (nats per character)")
    print(
        f"   training loss    {first['losses'][0]:.2f} -> {first['losses'][-1]:.2f} in {steps} "
        f"steps"
    )
    print(f"   validation loss  {validation[0]:.2f} -> {validation[-1]:.2f}")
    print(
        f"   unigram entropy  {entropy:.2f}, the best without context: "
        f"{verdict(learned, 'below it', 'NOT BELOW IT')}"
    )

    alone, gradients = one_process(text, ranks, first["rates"][:COMPARED])
    pairs = list(zip(first["first_means"], gradients, strict=True))
    apart = max(error(mean, one) for mean, one in pairs)
    losses_apart = max(abs(a - b) for a, b in zip(alone, first["losses"][:COMPARED], strict=True))
    same = apart < 1e-4 and losses_apart < 1e-4
    print("\n2. Is it what one process would train on the whole batch?")
    print(
        f"   {ranks} ranks, first losses    "
        f"{'  '.join(f'{x:.5f}' for x in first['losses'][:COMPARED])}"
    )
    print(
        f"   1 process, first losses  {'  '.join(f'{x:.5f}' for x in alone)}   "
        f"{verdict(losses_apart < 1e-4)}"
    )
    print(
        f"   all gradients            apart by {apart:.0e} of the largest at most   "
        f"{verdict(apart < 1e-4)}"
    )

    n = buffer_size(model, ranks)
    formula = 2 * (ranks - 1) * n // ranks * 4 * steps
    sent = [results.ledger.sent("bytes", rank) for rank in range(ranks)]
    hashes = [r["hash"] for r in results]
    print("\n3. Do all ranks end with the same parameters, and what did each send?")
    print(
        f"   formula: 2(N-1)/N * n * 4 bytes * {steps} steps, n = {n:,} gradients, loss, clock and "
        f"padding"
    )
    print("   rank   hash of parameters     bytes, formula      bytes, ledger")
    for rank in range(ranks):
        print(
            f"   {rank:<6} {hashes[rank]:<18} {formula:>18,} {sent[rank]:>18,}   "
            f"{verdict(sent[rank] == formula)}"
        )
    print(f"   parameters of all ranks: {verdict(len(set(hashes)) == 1)}")

    speed = steps * PER_RANK * ranks * SEQ_LEN / first["seconds"]
    print(
        f"\n4. What does it write by now?  ({speed:,.0f} tokens per second for "
        f"{first['seconds']:.0f} s)"
    )
    sample = write_on(model, text)
    print(
        "\n".join(
            f"   | {part}" for line in sample.splitlines() for part in textwrap.wrap(line, 76)
        )
    )

    matrix = results.ledger.matrix("bytes")
    validated = {"validation": (at, validation)}
    plots.loss_curve(range(steps), first["losses"], entropy, validated).save(out / "loss.png")
    plots.traffic_matrix(matrix, "bytes").save(out / "traffic.png")
    record = {
        "ranks": ranks,
        "steps": steps,
        "seconds": first["seconds"],
        "tokens_per_second": speed,
        "text": {
            "characters": len(text.tokens),
            "distinct": len(text.vocabulary),
            "entropy_nats": entropy,
        },
        "parameters": model.num_parameters(),
        "loss": {
            "training": first["losses"],
            "validation": list(zip(at, validation, strict=True)),
            "below_entropy": learned,
        },
        "one_process": {
            "losses": alone,
            "losses_apart": losses_apart,
            "gradients_apart": apart,
            "equal": same,
        },
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
