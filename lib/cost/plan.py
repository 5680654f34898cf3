"""A plan: how a model is distributed over GPUs, and how one step runs.

    GPUs = tp x cp x pp x dp     rank order: tensor ranks are consecutive,
                                 then context, then data, then pipeline
    ep divides dp x cp x tp      experts are on the ranks that other layers use for dp, cp and tp
    m = global batch / (dp x b)  micro-batches that each pipeline runs in a step

dp, tp, pp, cp, ep  degrees: data, tensor, pipeline, context, expert  v     stages per pipeline rank
b                   sequences in a micro-batch                         zero  ZeRO stage, 0 to 3
"""

from dataclasses import dataclass

RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("1f1b", "zb-1p", "zb-2p", "zb-v")  # 1f1b with v > 1 is interleaved


def slots(layers, pp):
    """The number of layers that the pp stages share. If pp does not divide it, the embedding and
    the vocabulary's matmul count as a layer each."""
    return layers + (2 if layers % pp else 0)


@dataclass(frozen=True)
class Plan:
    """Degrees, batch and memory choices."""

    global_batch: int  # sequences
    micro_batch: int = 1
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    v: int = 1
    zero: int = 0
    recompute: str = "none"  # "selective": the scores only, unless the stack says otherwise
    sequence_parallel: bool = False
    precision: str = "bf16"  # of matmuls; with fp8 or fp4 everything else stays in bf16
    schedule: str = "1f1b"
    offload: float = 0.0  # share of the activations that is offloaded to the host's memory

    @property
    def gpus(self):
        return self.tp * self.cp * self.pp * self.dp

    @property
    def micro_batches(self):
        """m, the micro-batches of one pipeline in a step."""
        return self.global_batch // (self.dp * self.micro_batch)

    def problem(self, model):
        """Why this plan is impossible for `model`, and the next move; None if it is possible."""
        rows = self.dp * self.micro_batch
        if self.global_batch % rows:
            low, high = self.global_batch // rows * rows, (self.global_batch // rows + 1) * rows
            near = " or ".join(str(batch) for batch in (low, high) if batch)
            return (
                f"global batch {self.global_batch} is not a multiple of dp {self.dp} x micro-batch "
                f"{self.micro_batch} = {rows}: use {near}, or another dp"
            )
        if model.heads % self.tp:
            return f"tp {self.tp} does not divide {model.heads} heads"
        if self.pp > model.layers or self.pp * self.v > slots(model.layers, self.pp):
            return (
                f"pp {self.pp} x v {self.v} = {self.pp * self.v} stages, but there are "
                f"{model.layers} layers"
            )
        if self.v > 1 and self.pp == 1:
            return f"v {self.v} stages per rank need a pipeline, but pp is 1"
        if self.v > 1 and self.micro_batches % self.pp:
            return (
                f"interleaved stages take pp {self.pp} micro-batches at a time, but m is "
                f"{self.micro_batches}"
            )
        if model.seq % (self.cp * (self.tp if self.sequence_parallel else 1)):
            return f"cp {self.cp} and tp {self.tp} do not divide the sequence of {model.seq} tokens"
        if self.ep > 1 and (not model.experts or model.experts % self.ep):
            return f"ep {self.ep} does not divide {model.experts} experts"
        if (self.dp * self.cp * self.tp) % self.ep:
            return f"ep {self.ep} does not divide dp x cp x tp = {self.dp * self.cp * self.tp}"
        return None

    def __str__(self):
        degrees = {
            "tp": self.tp,
            "pp": self.pp,
            "dp": self.dp,
            "cp": self.cp,
            "ep": self.ep,
            "v": self.v,
        }
        text = " ".join(
            f"{name}{size}"
            for name, size in degrees.items()
            if size > 1 or name in ("tp", "pp", "dp")
        )
        sp = " sp" if self.sequence_parallel else ""
        away = f" offload={self.offload:.0%}" if self.offload else ""
        schedule = f" {self.schedule}" if self.schedule != "1f1b" else ""
        return (
            f"{text} b{self.micro_batch} zero{self.zero} "
            f"recompute={self.recompute}{sp}{away}{schedule}"
        )
