"""Lab 1, section 6: accumulate(model, microbatches, counts, loss_fn), k micro-batches and one
exchange.

The model is a wrapper that notes what happens to it, in order; for k = 3, as it should be:

    forward  backward alone  forward  backward alone  forward  backward  average
             (in no_sync)             (in no_sync)             ^ its buckets leave
"""

import contextlib

import torch
import torch.distributed as dist
from torch import nn

from lib import backend
from lib.check import symptoms as s
from lib.check.cases import Setting, called, form_of, in_step
from lib.check.claims import claim, each, element, kept
from lib.check.comm import COLLECTIVES
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.explain import fraction, shares, two
from lib.check.lab1 import models
from lib.check.lab1.means import GROUPS, WORLD
from lib.data_parallel import accumulate

# the rows ("tokens") of each micro-batch
COUNTS = {"1 micro-batch": (2,), "2 micro-batches": (2, 1), "4 micro-batches": (1, 2, 2, 1)}
KS = {what: len(counts) for what, counts in COUNTS.items()}
CASES = (
    *(Setting(GROUPS[0], what=what) for what in KS),
    Setting(GROUPS[0], what="2 micro-batches", again=1),
)
EVENTS = ("forward", "backward alone", "backward", "average")


class Noting(nn.Module):
    """The small model, its gradients averaged over all ranks one by one, and `events`."""

    def __init__(self):
        super().__init__()
        self.module, self.events, self.alone = models.Small(0).to(backend.device()), [], False
        self.module.leave.bias.register_post_accumulate_grad_hook(self._backward_ran)

    def forward(self, *inputs):
        self.events.append("forward")
        return self.module(*inputs)

    def _backward_ran(self, _):
        self.events.append("backward alone" if self.alone else "backward")

    @contextlib.contextmanager
    def no_sync(self):
        before, self.alone = self.alone, True
        try:
            yield
        finally:
            self.alone = before

    def average_gradients(self):
        self.events.append("average")
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                parameter.grad = (
                    torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                )
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


def _shards(case, rank):
    """The micro-batches of a rank: (x (c, 3), y (c, 5), does it use the branch?) with c rows."""
    drawn = (models.shard(rank, 4 * case.again + i) for i in range(KS[case.what]))
    return [
        (x[:c], y[:c], branch) for (x, y, branch), c in zip(drawn, COUNTS[case.what], strict=True)
    ]


def _loss_sum(model, shard):
    return models.loss_of(model, shard) * len(shard[0])


def _measure(fn):
    held = []

    def one(case, _):
        model = Noting()
        there = [tuple(t.to(backend.device()) if torch.is_tensor(t) else t for t in one)
                 for one in _shards(case, case.members.index(dist.get_rank()))]  # fmt: skip
        loss = called(case, fn, model, there, list(COUNTS[case.what]), _loss_sum)
        is_tensor = torch.is_tensor(loss)
        record = {
            "ok": True,
            "events": model.events,
            "loss": loss.detach().cpu().clone() if is_tensor else loss,
        }
        record |= {
            "gradients": models.gradients(model.module),
            "attached": is_tensor and loss.requires_grad,
        }
        held.append((record, loss))
        return record

    records = in_step(CASES, dict.fromkeys, one, wire=dist.new_group())
    for record, loss in held:
        record["kept"] = not torch.is_tensor(loss) or torch.equal(
            loss.detach().cpu(), record["loss"]
        )
    return records


def _parts(case):
    """[[{name: gradient of the sum of its losses} of each rank] of each micro-batch alone]"""
    by_rank = [_shards(case, rank) for rank in range(case.world_size)]
    alone = [models.of_each_rank([[shards[i]] for shards in by_rank]) for i in range(KS[case.what])]
    return [
        [{name: count * gradient for name, gradient in named.items()} for named in of_ranks]
        for of_ranks, count in zip(alone, COUNTS[case.what], strict=True)
    ]


def _mean(named):
    return {name: sum(one[name] for one in named) / len(named) for name in named[0]}


def _gradients(case, rank, record):
    parts, got = _parts(case), record["gradients"]
    means = [_mean(of_ranks) for of_ranks in parts]
    want = {n: sum(one[n] for one in means) / sum(COUNTS[case.what]) for n in means[0]}
    wrong = next((n for n in want if got[n] is None or not models.equal(got[n], want[n])), None)
    if wrong is None:
        return None
    where, facts = (
        f"{case.name}: {case.rank(rank)}, {wrong}",
        {"case": case, "shares": None, "local": False, "means": False},
    )
    if got[wrong] is None:
        return Problem(
            "value",
            f"{where}: .grad is None, expected the mean over ranks",
            facts | {"local": True},
        )
    flat = lambda named: torch.cat([named[n].flatten() for n in want if got[n] is not None])
    found = shares(flat(got), [flat(mean) for mean in means])
    if found is None:
        found = shares(flat(got), [flat(of_ranks[rank]) for of_ranks in parts])
        facts["local"] = found is not None
    facts["shares"] = found
    k, counts = KS[case.what], COUNTS[case.what]
    facts["means"] = found is not None and all(
        abs(found.get(i, 0) - 1 / (k * count)) < 1e-6 for i, count in enumerate(counts)
    )
    problem = element(where, got[wrong], want[wrong])
    return Problem(
        "value", f"{problem.text}\n{_say(case, facts)}", facts, [case.name, _say(case, facts)]
    )


def _say(case, facts):
    if facts["shares"] is None:
        return "It is no sum of the micro-batches' gradients."
    whose = "this rank's own gradients" if facts["local"] else "the gradients"
    terms = (
        ", ".join(f"{fraction(c)} of micro-batch {i}" for i, c in facts["shares"].items())
        or "nothing"
    )
    return (
        f"Of {whose} of each micro-batch's sum of losses, it has {terms}; expected "
        f"1/{sum(COUNTS[case.what])} of each, averaged over the ranks."
    )


def _loss(case, rank, record):
    got, losses = (
        record["loss"],
        [_loss_sum(models.Small(0), shard).item() for shard in _shards(case, rank)],
    )
    counts = COUNTS[case.what]
    where, want = f"{case.name}: {case.rank(rank)} returned", sum(losses) / sum(counts)
    if not torch.is_tensor(got) or got.numel() != 1:
        facts = {"got": form_of(got), "float": isinstance(got, float)}
        return Problem(
            "returned", f"{where} {form_of(got)}, expected a tensor of one number", facts
        )
    if abs(got.item() - want) > 1e-9 * max(1, abs(want)):
        x, y = two(want, got.item())
        near = lambda *values: any(abs(got.item() - v) < 1e-9 * max(1, abs(v)) for v in values)
        means = [loss / count for loss, count in zip(losses, counts, strict=True)]
        facts = {
            "sum": near(sum(losses)),
            "last": near(losses[-1], losses[-1] / sum(counts), means[-1]),
            "means": near(sum(means) / len(means)),
        }
        return Problem(
            "loss",
            f"{where} {y}, expected {x}: the sum of {losses}, over {sum(counts)} tokens",
            facts,
            [case.name, got.item()],
        )
    return Problem("attached", f"{where} a loss that requires grad") if record["attached"] else None


def _one_exchange(case, rank, record):
    k, events = KS[case.what], record["events"]
    expected = ["forward", "backward alone"] * (k - 1) + ["forward", "backward", "average"]
    if events == expected:
        return None
    words = lambda some: ", ".join(
        "backward inside no_sync" if e == "backward alone" else e for e in some
    )
    text = f"{case.name}: {case.rank(rank)} did {words(events)}; expected {words(expected)}"
    return Problem(
        "events", text, {"k": k, "case": case} | {event: events.count(event) for event in EVENTS}
    )


def _events(fits):
    return lambda p: p.kind == "events" and fits(p.facts)


def _missing(p):
    return (
        p.kind == "value"
        and p.facts["shares"]
        and len(p.facts["shares"]) < KS[p.facts["case"].what]
    )


EXERCISE = Exercise(
    name="accumulate", reference=accumulate, measure=_measure, worlds=(WORLD,),
    may_call=(*COLLECTIVES, "accumulate.average_gradients"),
    leaves_out={
        "precise": "the model sends, and a loss may be added up in float32",
        "under way": "it returns when the gradients are averaged: no two steps are under way",
        "alone": "it takes no group: the model alone knows its ranks",
        "generators": "the notebook gives a list of micro-batches",
        "memory": "what each backward frees is torch's; that it follows its forward is a claim",
    },
    claims=(
        claim("gradient of the whole batch", 5, "4 ranks; k = 1, 2, 4 micro-batches, not equal",
              each(CASES, _gradients)),
        claim("the mean loss", 2, "over the rank's tokens, detached", each(CASES, _loss),
              kept(CASES)),
        claim("one exchange, whatever k", 3, "no_sync for the first k-1; average_gradients once",
              each(CASES, _one_exchange)),
    ),
    hints=(
        s.BUILT_IN.saying("build it from the model's `no_sync` and `average_gradients`."),
        Hint("not averaged over ranks", s.kind("value", local=True),
             "each rank still has its own gradient: call model.average_gradients() after the last "
             "backward."),
        Hint("a micro-batch is missing", _missing,
             "every micro-batch needs its backward, the last one too, and all before "
             "average_gradients()."),
        Hint("a mean of means", s.either(s.kind("value", means=True), s.kind("loss", means=True)),
             "every micro-batch got the weight 1/k, however many tokens it has. Divide each sum of "
             "losses by the tokens of all k micro-batches together."),
        Hint("unequal shares", s.kind("value"),
             "every token counts alike: divide each sum of losses by sum(counts), and average over "
             "the ranks once, when all gradients have been added."),
        s.NO_NUMBER.saying("end with `return` of the mean loss."),
        Hint("a plain number", s.kind("returned", float=True),
             "return the loss as a tensor, (): the cells below ask for its .item(). loss.detach() "
             "has no graph."),
        Hint("the sum of the losses", s.kind("loss", sum=True),
             "that is the sum over all tokens: divide by their number, so that losses can be "
             "compared whatever k is."),
        Hint("the last loss only", s.kind("loss", last=True),
             "that is the last micro-batch's. Add up the losses of all k."),
        Hint("another loss", s.kind("loss", "returned"),
             "return one number, the mean over this rank's tokens; nothing has to be sent for it."),
        Hint("a loss with its graph", s.kind("attached"),
             "it keeps every micro-batch's graph alive. Add up loss.detach()."),
        s.NOT_KEPT,
        Hint("one backward at the end",
             _events(lambda f: f["backward"] + f["backward alone"] < f["k"]),
             "summing losses first keeps the activations of all k micro-batches. Call backward "
             "after each forward."),
        Hint("its own average", _events(lambda f: f["average"] == 0),
             "the model sends its gradients itself, in its buckets: call model.average_gradients() "
             "once."),
        Hint("an average in every micro-batch", _events(lambda f: f["average"] > 1),
             "k exchanges instead of one. Call average_gradients() after the loop."),
        Hint("no_sync for the last one too", _events(lambda f: f["backward"] == 0),
             "in no_sync no bucket can leave during backward. The last micro-batch runs outside of "
             "it."),
        Hint("every micro-batch sends", _events(lambda f: f["backward"] > 1),
             "a bucket that leaves in an earlier backward misses the gradients still to come: run "
             "all micro-batches but the last, forward and backward, inside `with "
             "model.no_sync():`."),
        Hint("computed twice", _events(lambda f: f["forward"] > f["k"]),
             "loss_fn runs the forward pass. Call it once per micro-batch, and keep the loss."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
