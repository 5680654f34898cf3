"""The capstone's hints: for an estimate, by which plans it is off and to which side; for plans, by
what they lack."""

from lib.check import symptoms as s
from lib.check.exercise import Hint
from lib.check.pure import NOTHING


def _off(what, among=lambda job, plan: True, above=None):
    """Is this number off, in plans of this sort alone, and always too large (above), or
    always too small?"""

    def fits(p):
        if p.kind != "off" or p.fact("what") != what:
            return False
        limit = {"memory": 0.15, "MFU": 0.1}.get(what, 0.2)
        wrong = {case: ratio for case, ratio in p.facts["ratios"].items() if abs(ratio - 1) > limit}
        return all(among(*case) and above in (None, ratio > 1) for case, ratio in wrong.items())

    return fits


def _all(what, fits):
    return lambda p: (
        p.kind == "off" and p.fact("what") == what and all(map(fits, p.facts["ratios"].values()))
    )


def _some(what, fits, among):
    """Is fits(ratio) true in all plans of this sort?"""
    return lambda p: (
        p.kind == "off"
        and p.fact("what") == what
        and all(fits(ratio) for case, ratio in p.facts["ratios"].items() if among(*case))
    )


def _mixture(job, plan):
    return job.startswith("mixture")


def _full(job, plan):
    return plan.recompute == "full"


def _kept_in_mixture(job, plan):
    return _mixture(job, plan) and not _full(job, plan)


def _interleaved(job, plan):
    return plan.v > 1


def _few(job, plan):
    return plan.micro_batches < plan.pp


def _piped(job, plan):
    return plan.pp > 1


def _inside(job, plan):
    return job == "mixture, GB200"


def _across(job, plan):
    return job == "mixture, H100"


ESTIMATE = (
    s.CALLED_LIB.saying(
        "the cost model comes afterwards. Work with formulas of your own: section 4's, and what "
        "the text above adds to them."),
    NOTHING,
    Hint("not three numbers", s.kind("form"),
         "end with return memory, seconds, mfu: bytes, seconds, and 0 to 1."),
    Hint("no bytes", _all("memory", lambda ratio: ratio < 1e-5),
         "return plain bytes, and divide only to print."),
    Hint("every rank has all experts",
         s.both(_off("memory", _mixture, True), _some("memory", lambda ratio: ratio > 1.3,
             _mixture)),
         "a GPU has the experts of its stage and of its place in ep: all in experts / (ep pp). "
         "What is not in experts is cut by tp and pp."),
    Hint("inputs of all layers", _off("memory", _few, True),
         "in flight on the first stage: min(m, p) micro-batches."),
    Hint("recomputation keeps inputs", _off("memory", _full, True),
         "with full recomputation a layer keeps its input, 2 h bytes a token, and beside them one "
         "layer at a time is whole."),
    Hint("what experts keep", _off("memory", _kept_in_mixture),
         "a mixture's layer keeps other bytes of a token: 15 h, and for each of its k choices 4 h "
         "+ 6 F."),
    Hint("interleaved stages keep more", _off("memory", _interleaved, False),
         "where v > 1 there are 1 + (p-1) / (p v) times as many activations in flight. And "
         "gradients have 4 bytes here."),
    Hint("too much memory", _off("memory", above=True),
         "ZeRO-1 divides the optimizer's 12 bytes by all GPUs that hold the same parameters: per "
         "GPU that is 12 parameters / 256, dense or not. A micro-batch has b s tokens, of which a "
         "tensor rank keeps 1 / tp; min(m, p) are in flight."),
    Hint("too little memory", _off("memory", above=False),
         "weights take 2 bytes and gradients 4, both whole on every data rank; the optimizer's 12 "
         "are those of all parameters, experts too, over 256 GPUs."),
    Hint("all parameters compute",
         s.both(_off("seconds", _mixture, True), _some("seconds", lambda ratio: ratio > 3,
             _mixture)),
         "a token runs through model.active_parameters only."),
    Hint("forward runs twice", _off("seconds", _full, False),
         "with full recomputation forward runs twice: 4/3 of the operations, and its exchanges "
         "once more."),
    Hint("a row for every expert between domains",
         s.both(_off("seconds", _across, True), _some("seconds", lambda ratio: ratio > 1.2,
             _across)),
         "on H100 these plans spread ep over N = ep / per_node domains. Between them a token's row "
         "is sent once to each other domain that wants it, (N-1)(1 - (1-1/N)^k) rows over gpu.nic, "
         "and not once for each of the k experts. Inside, k (ep-1)/ep rows go over gpu.link; the "
         "slower of the two counts."),
    Hint("the exchange of experts", s.either(_off("seconds", _across),
        _off("seconds", _mixture, False)),
         "each token's row goes to k experts and back, forward and backward: 4 times 2 h bytes "
         "each (6 with full recomputation). With ep over N = ep / gpu.per_node > 1 domains, "
         "(N-1)(1 - (1-1/N)^k) rows a token also go through gpu.nic, and the slower of the two "
         "links counts."),
    Hint("an NVLink domain is no node of 8",
         s.both(_off("seconds", _inside, True), _some("seconds", lambda ratio: ratio > 1.3,
             _inside)),
         "gpu.per_node says how many GPUs NVLink connects: on GB200 that is 64, and ep 64 stays "
         "inside, on gpu.link."),
    Hint("the bubble", _off("seconds", _piped, False),
         "a GPU waits (p-1) / (v m + p-1) of the step: divide by one minus that. And recomputation "
         "takes a third more."),
    Hint("too long a step", _off("seconds", above=True),
         "operations: 6 for each active parameter and token, shared by all GPUs, each of which "
         "reaches `reached` of gpu.bf16. What a GPU sends: of its own tokens, its own layers, 1 / "
         "tp of them under sequence parallelism."),
    Hint("too short a step", _off("seconds", above=False),
         "a GPU reaches `reached` of its peak, not all of it; divide by one minus the bubble; then "
         "what is sent along ep and tp comes on top."),
    Hint("another part in each plan", _off("seconds"),
         "one term after the other: operations (4/3 of them if recomputed), over 256 GPUs, "
         "`reached` of the peak; ep's rows; tp's sums; the bubble around all."),
    Hint("the size of another job", _off("a published step"),
         "a published run has other sizes than the four jobs: take the batch and the number of "
         "GPUs from plan.global_batch and plan.gpus, and the tokens of a sequence from model.seq."),
    Hint("percent", _all("MFU", lambda ratio: abs(ratio / 100 - 1) < 0.2),
         "0 to 1: a share, no per cent."),
    Hint("operations twice", _off("MFU", _full, True),
         "the M is for model: what is computed again counts nothing. Only the 6 for each active "
         "parameter and token."),
    Hint("another MFU", _off("MFU"),
         "6 operations for each active parameter and token, over what 256 GPUs could have computed "
         "at their peak, gpu.bf16, in the seconds that you return."),
    *s.ANYWHERE,
)  # fmt: skip


def _slow(component, plan_is=lambda plan: True):
    """Does it lose most on this component, with such a plan?"""
    return lambda p: p.kind == "seconds" and p.facts["is"] == component and plan_is(p.facts["plan"])


def _large(*parts):
    """Is it one of these that takes most of the memory?"""
    return lambda p: p.kind == "memory" and p.facts["is"] in parts


PLANS = (
    s.CALLED_LIB.saying("the plans are yours to find."),
    NOTHING,
    Hint("not four plans", s.kind("form"),
         'return {"dense, H100": Plan(...), ...}, a plan for each name in JOBS.'),
    Hint("no Plan", s.kind("no plan"),
         "Plan(512, micro_batch, tp=..., pp=..., dp=..., zero=1), of lib.cost.plan."),
    Hint("a field of the Plan", s.kind("value"),
         "degrees are whole numbers; the jobs run in bf16, with ZeRO-1."),
    Hint("other GPUs", s.kind("gpus"),
         "tp x pp x dp is all the GPUs there are: choose tp and pp, and dp follows. ep is carved "
         "out of dp and tp."),
    Hint("another batch", s.kind("batch"),
         "the job says how many sequences a step has. b is yours to choose."),
    Hint("unequal stages", s.kind("stages"),
         "pp v stages of as many layers each. Qwen3 has 94: where pp does not divide them, "
         "embedding and head count as a layer each, which makes 96; and pp divides the 256 GPUs."),
    Hint("cannot be laid out", s.kind("layout"),
         "m = batch / (dp b) is whole; where v is not 1, pp divides it; ep divides the experts, "
         "and dp tp."),
    Hint("state too large", _large("state"),
         "weights and gradients are cut by tp and pp, those of experts by ep and pp; the optimizer "
         "also by dp: more of these."),
    Hint("activations too large", _large("activations"),
         "a layer keeps b / tp of them under sequence parallelism. More stages do not help while "
         "there are more micro-batches than stages: each has fewer layers, and more in flight. "
         "Full recomputation keeps inputs alone."),
    Hint("one micro-batch too large", _large("working", "logits"),
         "a single layer, or the logits, of so many sequences at once fills the GPU: a smaller "
         "micro-batch."),
    Hint("recomputed for nothing", _slow("matmul", lambda plan: plan.recompute == "full"),
         "full recomputation runs forward twice, a third more work. Find a plan whose activations "
         "fit without it."),
    Hint("a large bubble", _slow("bubble"),
         "(p-1) / (v m + p-1): fewer stages, more micro-batches (a smaller b or dp), or more "
         "stages per rank."),
    Hint("experts too far apart", _slow("expert"),
         "the exchange takes the time. ep as small as memory allows, inside the NVLink domain "
         "where it can be: 8 on H100, 64 on GB200."),
    Hint("tensor parallelism too wide", _slow("tensor", lambda plan: plan.tp > 1),
         "a layer's all-reduces go over NVLink only inside its domain, and experts are thin "
         "already: ep takes the place of tp."),
    Hint("norms on every tensor rank", _slow("elementwise",
        lambda plan: not plan.sequence_parallel),
         "without sequence parallelism each tensor rank has all tokens between the products: "
         "sequence_parallel=True."),
    Hint("gradients of many parameters", _slow("sharding"),
         "gradients and weights are exchanged once per step, and a backward pass hides only a part "
         "of them. With more stages a GPU has fewer of them."),
    Hint("many small kernels", _slow("launch"),
         "the host launches every layer's kernels for each micro-batch, however small: a larger "
         "b."),
    Hint("small products", _slow("matmul"),
         "thin slices of matrices compute slowly: a smaller tp, or a larger b."),
    *s.ANYWHERE,
)  # fmt: skip
