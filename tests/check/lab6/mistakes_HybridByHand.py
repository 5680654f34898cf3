"""Known mistakes in HybridByHand, edits of lib's code."""

from mistakes import Mistake, edit

_AVERAGE, _SHARE = "self.average(self.sets, self.mesh, self.ends)", "len(target) / len(targets) * "
_EXECUTE = "losses = self.pipeline.execute(schedule, tokens.split(self.b), wanted, share)"
_PP, _DP = (f'collectives.all_reduce(loss, self.mesh.group("{axis}"))' for axis in ("pp", "dp"))
_RETURN, _SCALE = (
    'return loss[0] / self.mesh.size("dp")',
    "scale_gradients(self.parameters, norm, max_norm)",
)
_FREE = 'free_other_stages(self.part, blocks, [mesh.here["pp"]])'
_OPTIMIZER = "self.optimizer = make_optimizer(self.parameters)"
MISTAKES = (
    Mistake("each micro-batch's mean", edit(_SHARE, "")),
    Mistake("each micro-batch's mean", edit(_SHARE, "1 / len(wanted) * ")),
    Mistake("summed, not averaged", edit(_RETURN, "return loss[0]")),
    Mistake("its own rows' loss", edit(_DP, "pass").then(_RETURN, "return loss[0]")),
    Mistake("its own rows' loss", edit(_PP, "pass")),
    Mistake("nothing on other stages", edit(_RETURN, f"{_RETURN} if losses else None")),
    Mistake("no norm returned", edit("return norm\n", "pass\n")),
    Mistake("a part of the parameters", edit(_FREE, "pass")),
    Mistake("not on every rank", edit(_PP, f"if losses:\n            {_PP}")),
    Mistake("gradients of a part", edit(_AVERAGE, "pass")),
    Mistake(
        "tied ones summed twice",  # Pipeline.run sums them itself
        edit(_SHARE, "").then(
            _EXECUTE,
            _EXECUTE.replace("losses =", "loss =").replace("execute", "run")
            + "\n        losses = {} if loss is None else {0: loss}",
        ),
    ),
    Mistake("averaged twice", edit(_AVERAGE, f"{_AVERAGE}\n        {_AVERAGE}")),
    Mistake(
        "tied ones not summed",
        edit(
            _AVERAGE,
            "self.average(self.sets._replace(tied=[], sharded=self.sets.sharded + self.sets.tied), "
            "self.mesh, None)"
        ),
    ),
    Mistake(
        "tied ones not summed",
        # freed before the Pipeline finds them
        edit(_FREE, "pass").then("links = connect(", f"{_FREE}\n        links = connect("),
    ),
    Mistake("gradients are kept", edit("parameter.grad = None", "pass")),
    Mistake("gradients are kept", edit("parameter.grad = None", "parameter.grad.zero_()")),
    Mistake(
        "each rank's own norm",
        edit(
            "self.norm_of(self.sets, self.mesh)",
            "sum(p.grad.square().sum() for p in self.parameters).sqrt()",
        ),
    ),
    Mistake("another update", edit(_SCALE, "pass")),
    Mistake("another update", edit(_SCALE, "scale_gradients(self.sets.sharded, norm, max_norm)")),
    Mistake("another update", edit(_OPTIMIZER,
        "self.optimizer = make_optimizer([*self.sets.sharded, *self.sets.replicated])")),
    Mistake("other parameters", edit(_OPTIMIZER, "pass").then(_FREE,
        f"self.optimizer = make_optimizer([*self.part.parameters()])\n        {_FREE}")),
    Mistake("an optimizer too late", edit(_OPTIMIZER, "self.make_optimizer = make_optimizer").then(
        "self.optimizer.step()", "self.make_optimizer(self.parameters).step()")),
    Mistake("scaled where it is short enough",
            edit(_SCALE, "[p.grad.mul_(max_norm / norm) for p in self.parameters]")),
    Mistake("another tensor group",
            edit('sequence_parallel_gpt(model, mesh.group("tp"))', "sequence_parallel_gpt(model)")),
    Mistake("without sequence parallelism",
            edit(
                "self.part = sequence_parallel_gpt(",
                "from lib.tensor_parallel import parallel_gpt\n        self.part = parallel_gpt(")),
    Mistake("tied ones not summed", edit("sets_of(self.part, self.pipeline.tied)",
        "sets_of(self.part, [])")),
    *(Mistake("the norm after", edit("return norm\n", f"return {after}\n"))
      for after in ("norm.clamp(max=max_norm)", "self.norm_of(self.sets, self.mesh)")),
    Mistake("divided too often", edit(_RETURN, f'{_RETURN} / self.mesh.size("pp")')),
    Mistake("other micro-batches",
            edit("targets.split(self.b)", "targets.chunk(self.b)").then("tokens.split(self.b)",
                "tokens.chunk(self.b)")
            .then("tokens.split(b)", "tokens.chunk(b)")),
    Mistake("two stages only", edit(_AVERAGE, _AVERAGE.replace("self.ends",
        'self.mesh.group("pp")'))),
    Mistake("not what it was given", edit(_AVERAGE,
        "average_over_mesh(self.sets, self.mesh, self.ends)")),
)  # fmt: skip
