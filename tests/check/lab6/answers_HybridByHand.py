"""Answers to Lab 6's HybridByHand: wrong ones, each with its hint, and right ones."""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer, told

from lib import collectives, hybrid
from lib.hybrid import free_other_stages, sets_of
from lib.hybrid.mesh import groups_along
from lib.pipeline import balance, gpipe, one_f_one_b
from lib.pipeline.links import connect
from lib.pipeline.split import split_gpt
from lib.pipeline.stage import Pipeline
from lib.tensor_parallel import sequence_parallel_gpt, vocab_parallel_cross_entropy
from lib.training.clip import scale_gradients

# right


class AsInTheNotebook:
    def __init__(self, model, mesh, tokens, b, make_optimizer, average, norm_of):
        self.mesh, self.b, self.average, self.norm_of = mesh, b, average, norm_of
        part = sequence_parallel_gpt(model, mesh.group("tp"))
        blocks = balance([1] * len(part.blocks), mesh.size("pp"))
        links = connect(groups_along(["pp"], mesh.sizes))
        self.pipeline = Pipeline(split_gpt(part, blocks), links, tokens.split(b))
        self.ends = links.ends
        free_other_stages(part, blocks, [mesh.here["pp"]])
        self.sets = sets_of(part, self.pipeline.tied)
        self.parameters = [p for parameters in self.sets for p in parameters]
        self.optimizer = make_optimizer(self.parameters)

    def loss_of(self, targets):
        def loss_of(logits, target):
            mean = vocab_parallel_cross_entropy(logits, target, self.mesh.group("tp"))
            return mean * len(target) / len(targets)

        return loss_of

    def mean_loss(self, losses):
        loss = torch.tensor([sum(loss.item() for loss in losses.values())], dtype=torch.float64)
        collectives.all_reduce(loss, self.mesh.group("pp"))
        collectives.all_reduce(loss, self.mesh.group("dp"))
        return loss[0] / self.mesh.size("dp")

    def backward(self, tokens, targets):
        x, y = tokens.split(self.b), targets.split(self.b)
        losses = self.pipeline.execute(
            one_f_one_b(self.mesh.size("pp"), len(x)), x, y, self.loss_of(targets)
        )
        self.average(self.sets, self.mesh, self.ends)
        return self.mean_loss(losses)

    def clip(self, max_norm):
        norm = self.norm_of(self.sets, self.mesh)
        scale_gradients(self.parameters, norm, max_norm)
        return norm

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class AnotherWay:
    """Pipeline.run, which weighs the losses, without its own sums; all forwards first; plain
    numbers; one all-reduce of the loss over the mesh's two axes in turn, by torch; clipping written
    out; gradients set to None one by one."""

    def __init__(self, model, mesh, tokens, b, make_optimizer, **functions):
        self.mesh, self.b, self.functions = mesh, b, functions
        self.whole = sequence_parallel_gpt(model, mesh.group("tp"))
        blocks = balance([1] * len(self.whole.blocks), mesh.size("pp"))
        self.links = connect(groups_along(["pp"], mesh.sizes))
        self.stages = split_gpt(self.whole, blocks)
        self.pipe = Pipeline(self.stages, self.links, tokens.split(b))
        tied, self.pipe.tied = self.pipe.tied, []
        mine = set(self.stages[mesh.here["pp"]].parameters())
        for parameter in self.whole.parameters():
            parameter.requires_grad_(parameter in mine)
        self.lists = sets_of(self.whole, tied)
        self.all = [p for p in self.whole.parameters() if p in mine]
        self.sgd = make_optimizer(self.all)

    def backward(self, tokens, targets):
        mesh = self.mesh
        loss_fn = lambda logits, y: vocab_parallel_cross_entropy(logits, y, mesh.group("tp"))
        schedule = gpipe(mesh.size("pp"), len(tokens.split(self.b)))
        loss = self.pipe.run(schedule, tokens.split(self.b), targets.split(self.b), loss_fn)
        self.functions["average"](self.lists, mesh, self.links.ends)
        told = (
            torch.zeros(1, dtype=torch.float64)
            if loss is None
            else loss.reshape(1) / mesh.size("dp")
        )
        for axis in ("dp", "pp"):
            dist.all_reduce(told, group=mesh.group(axis))
        return told.item()

    def clip(self, max_norm):
        norm = self.functions["norm_of"](self.lists, self.mesh).item()
        for parameter in self.all if norm > max_norm else []:
            parameter.grad *= max_norm / (norm + 1e-6)
        return norm

    def step(self):
        self.sgd.step()
        for parameter in self.all:
            parameter.grad = None


# wrong


class Libs(hybrid.Hybrid):
    def __init__(self, model, mesh, tokens, b, make_optimizer, average, norm_of):
        super().__init__(model, mesh, tokens, b, make_optimizer, split=sequence_parallel_gpt)


class AsksLibs:
    def __init__(self, *args, **functions):
        self.answer = hybrid.HybridByHand(*args, **functions)
        self.backward, self.clip, self.step = (
            self.answer.backward,
            self.answer.clip,
            self.answer.step,
        )


class ClipsWhatIsCut(AsInTheNotebook):
    def clip(self, max_norm):
        norm = self.norm_of(self.sets, self.mesh)
        scale_gradients(self.sets.sharded + self.sets.tied, norm, max_norm)
        return norm


class ParametersSent(AsInTheNotebook):
    """Right, and for nothing: they are equal."""

    def step(self):
        super().step()
        for parameter in self.parameters:
            parameter.data = collectives.all_reduce(
                parameter.data, self.mesh.group("dp")
            ) / self.mesh.size("dp")


class AllOnEveryRank:
    """The whole model on the whole batch, on each rank."""

    def __init__(self, model, mesh, tokens, b, make_optimizer, average, norm_of):
        self.model, self.mesh, self.optimizer = model, mesh, make_optimizer(model.parameters())

    def backward(self, tokens, targets):
        whole = [collectives.all_gather(rows, self.mesh.group("dp")) for rows in (tokens, targets)]
        loss = self.model.loss(*whole)
        loss.backward()
        return loss.detach()

    def clip(self, max_norm):
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class TheWorldForTp(AsInTheNotebook):
    def __init__(self, model, mesh, *args, **functions):
        sequence_parallel_gpt(model, dist.group.WORLD)
        super().__init__(model, mesh, *args, **functions)


class NotYet:
    def __init__(self, *args, **functions):
        raise NotImplementedError


WRONG = {
    Libs: "called what it builds",
    AsksLibs: "called what it builds",
    ClipsWhatIsCut: "another update",
    ParametersSent: "too much along an axis",
    AllOnEveryRank: "too little along an axis",
    TheWorldForTp: "cannot be made",
    NotYet: "not written",
}
RIGHT = [AsInTheNotebook, AnotherWay, as_an_answer(hybrid.HybridByHand)]
WRONG |= told(
    hybrid.HybridByHand,
    ("AsManyStagesAsTp", "another pipeline", ('b(self.mesh.size("pp")', 'b(self.mesh.size("tp")')),
    ("LocalWords", "a part of the vocabulary",
     ("vocab_parallel_cross_entropy(y, target, tp)",
      "torch.nn.functional.cross_entropy(y.flatten(0, 1), target.flatten())")),
)  # fmt: skip
