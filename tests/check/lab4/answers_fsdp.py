"""Answers to Lab 4's fsdp, class by class: wrong ones, each with the hint that it must get, and
right ones.

Those that differ from lib's by an edit are in mistakes_fsdp.py; those here are written
otherwise.
"""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib import zero
from lib.zero import fsdp as libs_fsdp
from lib.zero import unit as libs_unit


class AsInTheNotebook(zero.Unit):
    """Right. The wrong ones below replace one of its methods."""

    def unshard(self):
        for flat in self.flats:
            flat.full.untyped_storage().resize_(flat.padded * flat.full.element_size())
            with torch.no_grad():
                flat.full.copy_(self.all_gather(flat.shard.detach(), flat.group))
            flat.attach()
        self.is_unsharded = True

    def reshard(self):
        for flat in self.flats:
            for parameter in flat.parameters:
                parameter.data = flat.shard.detach()[:0]
            flat.full.untyped_storage().resize_(0)
        self.is_unsharded = False

    def reduce_gradients(self):
        for flat in self.flats:
            if flat.requires_grad:
                self.reduce(flat)

    def reduce(self, flat):
        flat.add_gradient(self.reduce_scatter(flat.flatten_gradients(), flat.group))


# Unit: wrong


class DropsGradients(AsInTheNotebook):
    def reshard(self):
        super().reshard()
        for flat in self.flats:
            for parameter in flat.parameters:
                parameter.grad = None


class InheritsReshard(AsInTheNotebook):
    reshard = zero.Unit.reshard


class AsksLibs(AsInTheNotebook):
    def unshard(self):
        zero.Unit.unshard(self)


class AsksLibsReshard(AsInTheNotebook):
    def reshard(self):
        zero.Unit.reshard(self)


class GradientsAsTheyAre(AsInTheNotebook):
    """An unused parameter has none, and there is padding."""

    def reduce(self, flat):
        line = flat.full.new_zeros(flat.padded)
        line[: flat.n] = torch.cat([parameter.grad.flatten() for parameter in flat.parameters])
        flat.add_gradient(self.reduce_scatter(line / dist.get_world_size(flat.group), flat.group))


class WholeGradientsStay(AsInTheNotebook):
    def reduce(self, flat):
        line, begin = flat.full.new_zeros(flat.padded), 0
        for parameter in flat.parameters:
            if parameter.grad is not None:
                line[begin : begin + parameter.numel()] = parameter.grad.flatten()
            begin += parameter.numel()
        flat.add_gradient(self.reduce_scatter(line / dist.get_world_size(flat.group), flat.group))


class InOneLine(AsInTheNotebook):
    """All flats' gradients in one line, rank by rank."""

    def reduce_gradients(self):
        flats = [flat for flat in self.flats if flat.requires_grad]
        if flats:
            N = dist.get_world_size(flats[0].group)
            chunks = zip(*(flat.flatten_gradients().chunk(N) for flat in flats), strict=True)
            line = torch.cat([chunk for of_rank in chunks for chunk in of_rank])
            piece = self.reduce_scatter(line, flats[0].group)
            for flat, part in zip(
                flats, piece.split([flat.padded // N for flat in flats]), strict=True
            ):
                flat.add_gradient(part.clone())


class OnlyIfSharded(AsInTheNotebook):
    def unshard(self):
        if not self.is_unsharded:
            super().unshard()


class NotWrittenUnit(zero.Unit):
    def unshard(self):
        raise NotImplementedError

    reshard = reduce_gradients = unshard


# Unit: right


class Guarded(AsInTheNotebook):
    """What is sharded already is left as it is."""

    def reshard(self):
        if self.is_unsharded:
            super().reshard()


class InPlace(AsInTheNotebook):
    """Gathered where it belongs; all memory first; gradients from the back, written by hand."""

    def unshard(self):
        for flat in reversed(self.flats):
            flat.full.untyped_storage().resize_(flat.padded * flat.shard.element_size())
            flat.attach()
        self.is_unsharded = True
        for flat in self.flats:
            self.all_gather(flat.shard, flat.group, out=flat.full)

    def reshard(self):
        super().reshard()
        for parameter in [p for flat in self.flats for p in flat.parameters]:
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)

    def reduce(self, flat):
        line, begin = torch.zeros(flat.padded, dtype=flat.shard.dtype, device=flat.shard.device), 0
        for parameter, slot in zip(flat.parameters, flat.slots, strict=True):
            if parameter.grad is not None:
                line[begin : begin + slot.numel()] = parameter.grad.reshape(-1)
            begin, parameter.grad = begin + slot.numel(), None
        piece = self.reduce_scatter(line, flat.group) / dist.get_world_size(flat.group)
        flat.shard.grad = piece if flat.shard.grad is None else flat.shard.grad + piece


class When(zero.FSDP):
    """Right."""

    def pre_forward(self, index, submodule, inputs, named):
        self.before_forward(index)
        return zero.on_backward(lambda: self.leave_backward(index), (inputs, named))

    def post_forward(self, index, submodule, inputs, output):
        self.leave_forward(index)
        return zero.on_backward(lambda: self.enter_backward(index), output)

    def before_forward(self, index: int) -> None:
        self.units[index].unshard()

    def after_forward(self, index: int) -> None:
        self.units[index].reshard()

    def before_backward(self, index: int) -> None:
        self.units[index].unshard()

    def after_backward(self, index: int) -> None:
        self.units[index].reshard()
        self.units[index].reduce_gradients()


# FSDP: wrong


class ReducesFirst(When):
    """In the order of many an explanation."""

    def after_backward(self, index: int) -> None:
        self.units[index].reduce_gradients()
        self.units[index].reshard()


class InheritsAHook(When):
    post_forward = zero.FSDP.post_forward


class HooksWeights(When):
    """Backward is thought to have left a unit when its output has a gradient."""

    def pre_forward(self, index, submodule, inputs, named):
        self.before_forward(index)
        return inputs, named

    def post_forward(self, index, submodule, inputs, output):
        self.leave_forward(index)
        output = zero.on_backward(lambda: self.leave_backward(index), output)
        return zero.on_backward(lambda: self.enter_backward(index), output)


class ReturnsTheOldOnes(When):
    """What on_backward returns is lost, and so are the hooks."""

    def pre_forward(self, index, submodule, inputs, named):
        super().pre_forward(index, submodule, inputs, named)
        return inputs, named

    def post_forward(self, index, submodule, inputs, output):
        super().post_forward(index, submodule, inputs, output)
        return output


class Swapped(When):
    def pre_forward(self, index, submodule, inputs, named):
        self.before_forward(index)
        return zero.on_backward(lambda: self.enter_backward(index), (inputs, named))

    def post_forward(self, index, submodule, inputs, output):
        self.leave_forward(index)
        return zero.on_backward(lambda: self.leave_backward(index), output)


class InheritsOne(When):
    after_backward = zero.FSDP.after_backward


class AsksLibsFSDP(When):
    def before_forward(self, index: int) -> None:
        super(When, self).before_forward(index)


class OncePerBackward(When):
    """Gathers a unit for forward once, until its backward has ended: a second forward
    before it finds none."""

    def before_forward(self, index: int) -> None:
        seen = self.__dict__.setdefault("seen", set())
        if index not in seen:
            super().before_forward(index)
        seen.add(index)

    def after_backward(self, index: int) -> None:
        super().after_backward(index)
        self.seen.discard(index)


class InputsAlone(When):
    def pre_forward(self, index, submodule, inputs, named):
        self.before_forward(index)
        return zero.on_backward(lambda: self.leave_backward(index), inputs), {}


class HooksPositionalOnly(When):
    """A tensor that is given by its name is not hooked: backward does not leave the unit."""

    def pre_forward(self, index, submodule, inputs, named):
        self.before_forward(index)
        return zero.on_backward(lambda: self.leave_backward(index), inputs), named


class HooksSingleTensors(When):
    """An output that is a dict is not hooked: backward does not enter the unit."""

    def post_forward(self, index, submodule, inputs, output):
        if isinstance(output, torch.Tensor):
            return super().post_forward(index, submodule, inputs, output)
        self.leave_forward(index)
        return output


class FreesByHand(When):
    """Frees a unit also while its backward recomputes it."""

    def post_forward(self, index, submodule, inputs, output):
        self.after_forward(index)
        return zero.on_backward(lambda: self.enter_backward(index), output)


class NotWrittenFSDP(zero.FSDP):
    def before_forward(self, *args) -> None:
        raise NotImplementedError

    after_forward = before_backward = after_backward = pre_forward = post_forward = before_forward


# FSDP: right


class FreedFirst(zero.FSDP):
    """Helpers of its own; only the tensors that need gradients are hooked."""

    def pre_forward(self, index, submodule, inputs, named):
        self.before_forward(index)
        given = [*inputs, named]
        *inputs, named = zero.on_backward(lambda: self.leave_backward(index), given)
        return tuple(inputs), named

    def post_forward(self, index, submodule, inputs, output):
        output = zero.on_backward(lambda: self.enter_backward(index), output)
        self.leave_forward(index)
        return output

    def _gather(self, index: int) -> None:
        unit = self.units[index]
        if not unit.is_unsharded:
            unit.unshard()

    def before_forward(self, index: int) -> None:
        self._gather(index)

    def before_backward(self, index: int) -> None:
        self._gather(index)

    def after_forward(self, index: int) -> None:
        list(self.units)[index].reshard()

    def after_backward(self, index: int) -> None:
        unit = self.units[index]
        unit.reshard()
        unit.reduce_gradients()


WRONG = {
    "Unit": {
        InheritsReshard: "called what it builds",
        AsksLibs: "called what it builds",
        AsksLibsReshard: "called what it builds",
        GradientsAsTheyAre: "an unused parameter",
        WholeGradientsStay: "full gradients stay",
        InOneLine: "another number of calls",
        OnlyIfSharded: "gathered once",
        DropsGradients: "gradients dropped",
        NotWrittenUnit: "not written",
    },
    "FSDP": {
        InheritsOne: "called what it builds",
        InheritsAHook: "called what it builds",
        ReducesFirst: "weights are freed last",
        HooksWeights: "not gathered for backward",
        ReturnsTheOldOnes: "no hook",
        Swapped: "left before it is entered",
        AsksLibsFSDP: "called what it builds",
        OncePerBackward: "not gathered for forward",
        InputsAlone: "named arguments lost",
        HooksPositionalOnly: "tensors not hooked",
        HooksSingleTensors: "tensors not hooked",
        FreesByHand: "hooks by hand",
        NotWrittenFSDP: "not written",
    },
}

RIGHT = {
    "Unit": [AsInTheNotebook, InPlace, Guarded, as_an_answer(libs_unit.Unit)],
    "FSDP": [When, FreedFirst, as_an_answer(libs_fsdp.FSDP)],
}
