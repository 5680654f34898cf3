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
        "Try: work with formulas of your own, section 4's and what the text above adds to them. "
        "The cost model comes afterwards."),
    NOTHING.saying("Try: end the function with `return ...`."),
    Hint("not three numbers", s.kind("form"),
         "Try: end with return memory, seconds, mfu: bytes, seconds, and a share between 0 and "
         "1."),
    Hint("no bytes", _all("memory", lambda ratio: ratio < 1e-5),
         "Try: return plain bytes, and divide only to print."),
    Hint("every rank has all experts",
         s.both(_off("memory", _mixture, True), _some("memory", lambda ratio: ratio > 1.3,
             _mixture)),
         "every rank is given all experts. A GPU has those of its stage and of its ep "
         "coordinate, which are all in experts / (ep pp), and everything else is split by tp and "
         "pp."),
    Hint("inputs of all layers", _off("memory", _few, True),
         "the micro-batches in flight are counted wrongly. On the first stage they are min(m, "
         "p)."),
    Hint("recomputation keeps inputs", _off("memory", _full, True),
         "full recomputation is not counted. With it a layer keeps only its input, 2 h bytes per "
         "token, and one layer at a time has all of its activations in addition."),
    Hint("what experts keep", _off("memory", _kept_in_mixture),
         "a mixture's layer keeps other bytes than a dense one: 15 h per token, and 4 h + 6 F "
         "for each of the token's k choices."),
    Hint("interleaved stages keep more", _off("memory", _interleaved, False),
         "interleaving is not counted. Where v > 1 there are 1 + (p-1) / (p v) times as many "
         "activations in flight; and gradients have 4 bytes here."),
    Hint("too much memory", _off("memory", above=True),
         "a division is missing. ZeRO-1 divides the optimizer's 12 bytes by all GPUs that hold "
         "the same parameters, which is 12 parameters / 256 per GPU, dense or not, and of a "
         "micro-batch's b s tokens a tensor rank keeps 1 / tp, for min(m, p) micro-batches."),
    Hint("too little memory", _off("memory", above=False),
         "something is missing. Weights take 2 bytes and gradients 4, both replicated on every "
         "data rank, and the optimizer's 12 are those of all parameters, experts too, divided by "
         "256 GPUs."),
    Hint("all parameters compute",
         s.both(_off("seconds", _mixture, True), _some("seconds", lambda ratio: ratio > 3,
             _mixture)),
         "all parameters are counted as computing. A token passes through "
         "model.active_parameters only."),
    Hint("forward runs twice", s.both(_off("seconds", _full, False),
         lambda p: not _off("seconds", _across)(p)),
         "full recomputation is not counted. With it the forward pass runs twice, which makes "
         "4/3 of the operations, and sends its exchanges once more."),
    Hint("a row for every expert between domains",
         s.both(_off("seconds", _across, True), _some("seconds", lambda ratio: ratio > 1.2,
             _across)),
         "between NVLink domains a row is counted for each of the k experts. It is sent once to "
         "each other domain that wants it: with N = ep / per_node domains, (N-1)(1 - (1-1/N)^k) "
         "rows over gpu.nic. Inside, k (ep-1)/ep rows are sent over gpu.link, and the slower of "
         "the two counts."),
    Hint("the exchange of experts", s.either(_off("seconds", _across),
        _off("seconds", _mixture, False)),
         "the exchange of the experts is too short. Each token's row is sent to k experts and "
         "back, forward and backward: 4 times 2 h bytes each (6 with full recomputation). With "
         "ep over N = ep / gpu.per_node > 1 domains, (N-1)(1 - (1-1/N)^k) rows per token also "
         "use gpu.nic, and the slower of the two links counts."),
    Hint("an NVLink domain is no node of 8",
         s.both(_off("seconds", _inside, True), _some("seconds", lambda ratio: ratio > 1.3,
             _inside)),
         "an NVLink domain is taken to have 8 GPUs. gpu.per_node says how many it connects, 64 "
         "on GB200, where ep 64 stays inside, on gpu.link."),
    Hint("the bubble", _off("seconds", _piped, False),
         "the bubble is too short. A GPU waits (p-1) / (v m + p-1) of the step, so divide by one "
         "minus that; and recomputation takes a third more."),
    Hint("too long a step", _off("seconds", above=True),
         "Try: compare with these terms. There are 6 operations for each active parameter and "
         "token, shared by all GPUs, each of which reaches `reached` of gpu.bf16. A GPU sends "
         "only for its own tokens and layers, and 1 / tp of them under sequence parallelism."),
    Hint("too short a step", _off("seconds", above=False),
         "Try: compare with these terms. A GPU reaches `reached` of its peak, not all of it, "
         "what is sent along ep and tp is added, and the sum is divided by one minus the bubble."),
    Hint("another part in each plan", _off("seconds"),
         "Try: check one term after the other: operations (4/3 of them if recomputed) over 256 "
         "GPUs at `reached` of the peak, ep's rows, tp's sums, and the bubble around all of it."),
    Hint("the size of another job", _off("a published step"),
         "the sizes of the four jobs are used for a published run. Take the batch and the number "
         "of GPUs from plan.global_batch and plan.gpus, and the tokens of a sequence from "
         "model.seq."),
    Hint("percent", _all("MFU", lambda ratio: abs(ratio / 100 - 1) < 0.2),
         "the MFU is in percent. Return a share between 0 and 1."),
    Hint("operations twice", _off("MFU", _full, True),
         "recomputed operations are counted. The M of MFU stands for model, so only the 6 for "
         "each active parameter and token count."),
    Hint("another MFU", _off("MFU"),
         "the MFU is another ratio. It is 6 operations for each active parameter and token, "
         "divided by what 256 GPUs could have computed at their peak, gpu.bf16, in the seconds "
         "that you return."),
    *s.ANYWHERE,
)  # fmt: skip


def _slow(component, plan_is=lambda plan: True):
    """Does it lose most on this component, with such a plan?"""
    return lambda p: p.kind == "seconds" and p.facts["is"] == component and plan_is(p.facts["plan"])


def _large(*parts):
    """Is it one of these that takes most of the memory?"""
    return lambda p: p.kind == "memory" and p.facts["is"] in parts


PLANS = (
    s.CALLED_LIB.saying("Try: find the plans yourself."),
    NOTHING.saying("Try: end the function with `return ...`."),
    Hint("not four plans", s.kind("form"),
         'Try: return {"dense, H100": Plan(...), ...}, with a plan for each name in JOBS.'),
    Hint("no Plan", s.kind("no plan"),
         "Try: use Plan(512, micro_batch, tp=..., pp=..., dp=..., zero=1), of lib.cost.plan."),
    Hint("a field of the Plan", s.kind("value"),
         "a field of the Plan is wrong. Degrees are ints, and the jobs run in bf16, with ZeRO-1."),
    Hint("other GPUs", s.kind("gpus"),
         "tp x pp x dp is not the number of GPUs. Choose tp and pp, and dp follows; ep uses "
         "ranks of dp and tp."),
    Hint("another batch", s.kind("batch"),
         "the batch is another one. The job says how many sequences a step has, and only b is "
         "yours to choose."),
    Hint("unequal stages", s.kind("stages"),
         "the pp v stages do not have the same number of layers. Qwen3 has 94; where pp does not "
         "divide them, embedding and head count as a layer each, which makes 96, and pp divides "
         "the 256 GPUs."),
    Hint("cannot be laid out", s.kind("layout"),
         "something does not divide. m = batch / (dp b) is an int, pp divides it where v is not "
         "1, and ep divides the experts and dp tp."),
    Hint("state too large", _large("state"),
         "Try: increase tp or pp, which split weights and gradients, or ep and pp for those of "
         "experts. The optimizer state is also split by dp."),
    Hint("activations too large", _large("activations"),
         "Try: increase tp or decrease b, because a layer keeps b / tp of them under sequence "
         "parallelism, or use full recomputation, which keeps inputs alone. More stages do not "
         "help while there are more micro-batches than stages, because each has fewer layers and "
         "more in flight."),
    Hint("one micro-batch too large", _large("working", "logits"),
         "Try: use a smaller micro-batch, because a single layer, or the logits, of so many "
         "sequences at once fills the GPU."),
    Hint("recomputed for nothing", _slow("matmul", lambda plan: plan.recompute == "full"),
         "Try: find a plan whose activations fit without full recomputation, which runs the "
         "forward pass twice, a third more work."),
    Hint("a large bubble", _slow("bubble"),
         "Try: reduce the bubble, (p-1) / (v m + p-1), with fewer stages, more micro-batches (a "
         "smaller b or dp), or more stages per rank."),
    Hint("experts too far apart", _slow("expert"),
         "Try: make ep as small as memory allows, because the exchange takes most of the time, "
         "and keep it inside an NVLink domain where possible: 8 on H100, 64 on GB200."),
    Hint("tensor parallelism too wide", _slow("tensor", lambda plan: plan.tp > 1),
         "Try: use a smaller tp, because every layer waits for its all-reduces along tp, and they "
         "use NVLink only inside its domain. A dense model can have more stages instead, and a "
         "mixture a larger ep."),
    Hint("norms on every tensor rank", _slow("elementwise",
        lambda plan: not plan.sequence_parallel),
         "Try: set sequence_parallel=True, because otherwise each tensor rank computes all "
         "tokens between the matmuls."),
    Hint("gradients of many parameters", _slow("sharding"),
         "Try: use more stages, so that a GPU has fewer parameters. Gradients and weights are "
         "exchanged once per step, and a backward pass hides only a part of that."),
    Hint("many small kernels", _slow("launch"),
         "Try: use a larger b, because the host launches every layer's kernels for each "
         "micro-batch, however small."),
    Hint("small products", _slow("matmul"),
         "Try: use a smaller tp or a larger b, because thin slices of matrices compute slowly."),
    *s.ANYWHERE,
)  # fmt: skip
