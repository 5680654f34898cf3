"""The shape of a transformer: the matrices of its layers, the number of its parameters, and its
operations per token.

One layer, per token (2 operations for each weight; sequences of s tokens):

    attention  q k v   h x (a + 2 kv) d        grouped-query attention:
                                               kv < a heads of keys and values
               scores  2 x 2 s a d             every pair of tokens; half of that if the kernel
                                               skips the pairs that a causal mask hides
               out     a d x h
    MLP        GeLU    h x f, f x h            2 matrices
               SwiGLU  h x f twice, f x h      3 matrices
    MoE        router  h x E,  then topk of E experts, each of which is an MLP, and in some models
                               a shared expert that all tokens visit

LatentMoE (Nemotron 3 Super, arXiv 2604.12374) projects tokens to a narrower width before they are
sent to the experts.

h hidden size, a heads of size d, kv heads of keys and values, f width of the MLP, E experts

Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) replaces the projection to q, and that
to k and v, by two thin matrices each, with q_rank and kv_rank elements between them. Each query
head has rope_dim additional elements for the position; those of the keys are shared by all heads.

Sources: Narayanan et al. 2021 (arXiv 2104.04473), equations 2 and 3; Korthikanti et al. 2022 (arXiv
2205.05198), appendix A; each model's own paper, in data/models.csv.
"""

import functools
import json
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from lib.cost.published import table

LEAST_1 = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "seq")
LEAST_0 = (
    "experts", "topk", "shared_ffn", "dense_layers", "dense_ffn", "q_rank", "kv_rank", "rope_dim",
    "window", "latent",
)  # fmt: skip
FLAGS = ("gated", "tied", "biased")
NEEDS = (  # (a size, another size without which it has no meaning)
    ("shared_ffn", "experts"), ("dense_layers", "dense_ffn"), ("dense_ffn", "dense_layers"),
    ("dense_ffn", "experts"),
    ("q_rank", "kv_rank"), ("rope_dim", "kv_rank"), ("latent", "experts"),
)  # fmt: skip
MOST = {"layers": 10_000}  # the limit for any other size is 10^9


@dataclass(frozen=True)
class Model:
    """One transformer and the sequence length it trains on."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int  # of one expert, if there are experts
    vocab: int
    seq: int
    gated: bool = False  # SwiGLU: 3 matrices instead of 2
    tied: bool = True  # the last matmul uses the embedding as its weight
    experts: int = 0
    topk: int = 0
    shared_ffn: int = 0  # width of the expert that every token visits
    dense_layers: int = 0  # the first layers, which have an MLP of width dense_ffn, not experts
    dense_ffn: int = 0
    q_rank: int = 0
    kv_rank: int = 0  # not 0 means latent attention
    rope_dim: int = 0
    window: int = 0  # every other layer attends to the last `window` tokens only
    # width to which tokens are projected before they are sent to the experts (LatentMoE)
    latent: int = 0
    # experts have biases and a clamped activation, for which there is no fused kernel
    biased: bool = False

    def problem(self):
        """Why no transformer can have these sizes, and which of them to change; None if one can."""
        for key in (*LEAST_1, *LEAST_0):
            size, least = getattr(self, key), int(key in LEAST_1)
            if not isinstance(size, int) or size < least:
                return (
                    f"{key} is {size!r}: it should be a whole number{' above 0' if least else ''}"
                )
            if size > MOST.get(key, 10**9):
                return f"{key} is {size:.3g}: at most {MOST.get(key, 10**9):,} are modelled"
        for key in FLAGS:
            if getattr(self, key) not in (0, 1):
                return f"{key} is {getattr(self, key)!r}: it should be 1 or 0"
        if self.heads % self.kv_heads:
            return f"kv_heads {self.kv_heads} does not divide {self.heads} heads"
        if bool(self.experts) != bool(self.topk) or self.topk > self.experts:
            return (
                f"experts is {self.experts or 'empty'} and topk {self.topk or 'empty'}: a mixture "
                f"needs both, and topk of at most experts"
            )
        if self.dense_layers > self.layers:
            return f"dense_layers is {self.dense_layers}, of {self.layers} layers"
        for key, needs in NEEDS:
            if getattr(self, key) and not getattr(self, needs):
                return (
                    f"{key} is {getattr(self, key)}, but {needs} is empty: it says nothing without "
                    f"that"
                )
        return None

    @functools.cached_property
    def plain(self):
        """A Model in which all layers are like the dense first layers of this mixture; None if it
        has no such layers."""
        if not (self.experts and self.dense_layers):
            return None
        return replace(
            self,
            experts=0,
            topk=0,
            shared_ffn=0,
            ffn=self.dense_ffn,
            dense_layers=0,
            dense_ffn=0,
            latent=0,
        )

    def plain_on(self, layers):
        """[dense layers of a mixture on each stage]. layers: [all layers on each stage]."""
        if not self.dense_layers:
            return [0] * len(layers)
        before = accumulate(layers, initial=0)
        return [max(0, min(n, self.dense_layers - b)) for n, b in zip(layers, before, strict=False)]

    def attention_matrices(self):
        """[(inputs, outputs)] of the attention's weights. Tensor parallelism splits the
        heads, which are on the longer side of each matrix, except of latent attention's thin first
        ones."""
        h, a, d = self.hidden, self.heads, self.head_dim
        if self.kv_rank:
            wide = a * (d + self.rope_dim)
            q = [(h, self.q_rank), (self.q_rank, wide)] if self.q_rank else [(h, wide)]
            return [*q, (h, self.kv_rank + self.rope_dim), (self.kv_rank, a * 2 * d), (a * d, h)]
        return [(h, (a + 2 * self.kv_heads) * d), (a * d, h)]

    @property
    def travelling(self):
        """The number of elements of a token when it is sent to an expert."""
        return self.latent or self.hidden

    def mlp_matrices(self, width, hidden=None):
        """[(inputs, outputs)] of an MLP of this width. SwiGLU's first two matrices count as one
        of twice the width."""
        hidden = hidden or self.hidden
        return [(hidden, (2 if self.gated else 1) * width), (width, hidden)]

    def expert_matrices(self):
        """[(inputs, outputs)] of one expert, or of the dense MLP."""
        return self.mlp_matrices(self.ffn, self.travelling)

    def shared_matrices(self):
        """[(inputs, outputs)] of what all tokens of a mixture pass through: the shared expert, and
        the projections to the latent width and back."""
        latent = [(self.hidden, self.latent), (self.latent, self.hidden)] if self.latent else []
        return (self.mlp_matrices(self.shared_ffn) if self.shared_ffn else []) + latent

    @functools.cached_property
    def attention_parameters(self):
        return sum(n * k for n, k in self.attention_matrices()) + 4 * self.hidden  # and two norms

    @functools.cached_property
    def whole_parameters(self):
        """The part of attention_parameters that tensor parallelism replicates: norms, and the thin
        first matrices of latent attention."""
        thin = self.q_rank + self.kv_rank + self.rope_dim if self.kv_rank else 0
        return self.hidden * (4 + thin)

    @functools.cached_property
    def expert_parameters(self):
        """Parameters of one expert, or of the dense MLP."""
        return sum(n * k for n, k in self.expert_matrices())

    @functools.cached_property
    def shared_parameters(self):
        """Parameters of the MLP of a mixture's layer, except its routed experts: those of
        `shared_matrices`, and the router."""
        return sum(n * k for n, k in self.shared_matrices()) + self.hidden * self.experts

    @functools.cached_property
    def dense_mlp_parameters(self):
        """Parameters of the MLP in one of a mixture's dense first layers."""
        return sum(n * k for n, k in self.mlp_matrices(self.dense_ffn))

    @property
    def embedding_parameters(self):
        return self.vocab * self.hidden

    @property
    def parameters(self):
        """All parameters: those of the layers, and of the embedding, which counts twice unless it
        is tied."""
        return (
            self._layers(max(1, self.experts)) + (1 if self.tied else 2) * self.embedding_parameters
        )

    @property
    def active_parameters(self):
        """The parameters that a token is multiplied with: topk of the experts in each layer, and
        the embedding in the last matmul."""
        return self._layers(max(1, self.topk)) + self.embedding_parameters

    def _layers(self, experts):
        """Parameters of all layers, with this many experts counted in each."""
        mlp = experts * self.expert_parameters + (self.shared_parameters if self.experts else 0)
        mlps = (
            self.layers - self.dense_layers
        ) * mlp + self.dense_layers * self.dense_mlp_parameters
        return self.layers * self.attention_parameters + mlps

    def scores_flops(self, causal):
        """Operations of one layer's attention scores in forward, per token: 4 s a d, or half of
        that if `causal`. Latent attention adds the rope_dim elements of the queries. With a window,
        this is the mean of a layer with the window and one without."""
        wide = 2 * self.head_dim + (self.rope_dim if self.kv_rank else 0)
        full = 2 * self.seq * self.heads * wide
        if self.window:
            full = (full + 2 * 2 * min(self.window, self.seq) * self.heads * wide) / 2
        return full / 2 if causal else full

    def flops_per_token(self, causal=False):
        """Operations of forward and backward per token: 6 for each active parameter, plus 3 times
        those of the scores in forward. causal: count only the scores that a causal mask keeps."""
        return 6 * self.active_parameters + 3 * self.layers * self.scores_flops(causal)


def shape(name, layers, hidden, heads, vocab, seq, **more):
    """A Model from the numbers that papers print in their tables. By default, an MLP has GeLU if
    its width is 4 h and SwiGLU otherwise, and the embeddings are tied if the MLP is not gated.

    Raises ValueError for sizes that no transformer can have.
    """
    if not (isinstance(hidden, int) and isinstance(heads, int) and 0 < heads <= hidden):
        raise ValueError(
            f"hidden {hidden!r} and heads {heads!r}: each head should have one of the numbers at "
            f"least"
        )
    sizes = {"kv_heads": heads, "head_dim": hidden // heads, "ffn": 4 * hidden, **more}
    sizes = {"gated": sizes["ffn"] != 4 * hidden, **sizes}
    model = Model(
        name, layers, hidden, heads, vocab=vocab, seq=seq, **{"tied": not sizes["gated"], **sizes}
    )
    if why := model.problem():
        raise ValueError(f"model {name!r}: {why}")
    return replace(model, **{key: bool(getattr(model, key)) for key in FLAGS})


@functools.cache
def known():
    """{name: Model} of data/models.csv, each with sequences of 2048 tokens; use `replace(model,
    seq=...)` for any other length."""
    models = {}
    for row in table("models"):
        row.pop("source")
        name = row.pop("model")
        models[name] = shape(
            name, seq=2048, **{key: value for key, value in row.items() if value is not None}
        )
    return models


def load(name, seq=None):
    """The Model called `name` in data/models.csv, or described by the JSON file at the path `name`.

    seq: a sequence length to use instead of the model's own.

    The file contains the fields of `shape`, for example {"layers": 32, "hidden": 4096, "heads": 32,
    "vocab": 50257, "seq": 2048}. Raises ValueError for a name that is neither, for a file that is
    not JSON or in which a field is missing, unknown or impossible, and for a seq below 1. Raises
    OSError if there is no such file.
    """
    if name.endswith(".json"):
        model = _described(name)
    elif name in known():
        model = known()[name]
    else:
        raise ValueError(f"no model {name!r}: there are {', '.join(known())}; or give a .json file")
    if seq is not None and seq < 1:
        raise ValueError(f"{seq} tokens per sequence: at least 1")
    return replace(model, seq=seq) if seq else model


def _described(path):
    """The Model that a JSON file describes."""
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as problem:
        raise ValueError(f"{path} is not JSON: {problem}") from None
    if not isinstance(told, dict):
        raise ValueError(f'{path} should hold one model: {{"layers": 32, "hidden": 4096, ...}}')
    fields = {
        key: value for key, value in {"name": Path(path).stem, **told}.items() if value is not None
    }
    missing = {"layers", "hidden", "heads", "vocab", "seq"} - set(fields)
    if missing:
        raise ValueError(
            f"{path} lacks {', '.join(sorted(missing))}: give layers, hidden, heads, vocab and seq"
        )
    known_fields = Model.__dataclass_fields__
    strange = ", ".join(sorted(set(fields) - set(known_fields)))
    if strange:
        raise ValueError(f"{path}: {strange} is not known; use {', '.join(known_fields)}")
    if fields.get("experts") and not (fields.get("topk") and fields.get("ffn")):
        raise ValueError(
            f"{path}: experts {fields['experts']}, topk {fields.get('topk')}, ffn "
            f"{fields.get('ffn')}: a mixture needs all three, ffn being the width of one expert"
        )
    return shape(**fields)
