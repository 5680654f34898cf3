"""The mistakes that are made in Unit, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab3.compare import it_is
from lib.check.lab4.fsdp_given import CALLS_LIB, NOT_ALL_RANKS, OTHERWISE, WRONG_GROUP


def _kind(*kinds):
    return lambda p: p.kind in kinds


def _raised(*words):
    return lambda p: p.kind == "raised" and any(word in p.text for word in words)


HINTS = (
    CALLS_LIB,
    WRONG_GROUP,
    Hint(
        "elements for bytes",
        _raised("MemoryError"),
        "a storage counts bytes: resize_(flat.padded * flat.whole.element_size()). And memory comes first, then what "
        "is gathered into it.",
    ),
    Hint(
        "no memory to gather into",
        lambda p: p.kind == "died" or (p.kind == "no memory" and not p.facts["other"]),
        "reshard has freed flat.whole's memory. Before you copy into it: "
        "flat.whole.untyped_storage().resize_(flat.padded * flat.whole.element_size()).",
    ),
    Hint(
        "another tensor for the whole",
        lambda p: p.kind == "another whole" or (p.kind == "no memory" and p.facts["other"]),
        "autograd's graph may hold views of flat.whole: fill that tensor, flat.whole.copy_(...), and let its memory "
        "come and go by resize_. `flat.whole = ...` makes another.",
    ),
    Hint(
        "not attached",
        _kind("not attached"),
        "after the gather the parameters must become views of whole again, in their shapes: flat.attach().",
    ),
    Hint(
        "gathered once",
        it_is("turn before"),
        "the optimizer has changed the shards since the last unshard. Gather every time.",
    ),
    Hint(
        "another part gathered",
        lambda p: p.kind == "value" and ("after unshard" in p.text),
        "each rank gives flat.shard; all_gather puts the ranks' shards in a line, which is the whole.",
    ),
    Hint("the flag", _kind("flag"), "unshard sets self.is_unsharded to True, reshard to False: FSDP asks it."),
    Hint(
        "overwritten",
        it_is("the last backward alone"),
        "a second micro-batch adds to the shards' .grad, as backward adds to a parameter's: flat.add_gradient(piece).",
    ),
    Hint(
        "averaged twice",
        lambda p: p.kind == "value" and "expected / " in p.facts.get("is", ""),
        "flat.take_gradients() has divided by N already, so the sum of all ranks' lines is the mean.",
    ),
    Hint(
        "a sum, no mean",
        lambda p: p.kind == "value" and " x expected" in p.facts.get("is", ""),
        "divide by the number of ranks, once: flat.take_gradients() does.",
    ),
    Hint(
        "another rank's gradient",
        _kind("value", "form"),
        "reduce_scatter(line, group) adds up the ranks' lines and gives rank r chunk r, (padded/N,).",
    ),
    Hint(
        "an unused parameter",
        _raised("NoneType"),
        "a parameter that this rank did not use has .grad None, and counts as zeros: flat.take_gradients() does that.",
    ),
    Hint(
        "padding left out",
        _raised("to a tensor of size", "different size"),
        "N need not divide the flat's numbers: the line has flat.padded, and so every rank's piece has padded/N.",
    ),
    Hint(
        "nothing is reduced",
        _kind("no gradient"),
        "every flat with flat.trained sends its line, whatever this rank used of it, and keeps its piece: "
        "flat.add_gradient(piece).",
    ),
    Hint(
        "whole gradients stay",
        _kind("kept", "unreduced"),
        "they are as large as the whole parameters. flat.take_gradients() sets them to None.",
    ),
    Hint(
        "not freed",
        _kind("not freed"),
        "flat.whole.untyped_storage().resize_(0) gives the memory back. Parameters that are empty free nothing by "
        "themselves: whole still holds it.",
    ),
    Hint(
        "parameters of memory that is gone",
        _kind("not empty"),
        "give every parameter an empty tensor: parameter.data = flat.shard.detach()[:0]. Who touches it then meets an "
        "error, not memory that is gone.",
    ),
    Hint(
        "the shard is lost",
        _kind("shard gone", "shard changed"),
        "the shard stays, all the time: it is what the optimizer steps on, and what is gathered next time.",
    ),
    Hint(
        "frozen flats too",
        lambda p: p.kind == "calls" and len(p.facts["got"]) > len(p.facts["want"]),
        "each flat is gathered once; and of the flats only those with flat.trained have gradients to send.",
    ),
    Hint(
        "another number of calls",
        _kind("calls"),
        "self.all_gather(flat.shard, flat.group) for each flat; self.reduce_scatter(line, flat.group) for each that is "
        "trained, with the whole line, (padded,).",
    ),
    NOT_ALL_RANKS,
    OTHERWISE,
)
