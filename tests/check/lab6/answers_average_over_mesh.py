"""Answers to Lab 6's average_over_mesh: wrong ones, each with its hint, and right ones."""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib import collectives, hybrid


def all_of(sets):
    return [*sets.sharded, *sets.replicated, *sets.tied]


def average_with(sets, mesh, ends, all_reduce, tied=None, replicated=None, mean=None, by=None):
    """The right answer, but for what is given: what is done with each tied one, each replicated
    one, each at all."""
    for p in sets.tied:
        tied(p) if tied else all_reduce(p.grad, ends)
    for p in sets.replicated:
        replicated(p) if replicated else all_reduce(p.grad, mesh.group("tp"))
    for p in all_of(sets):
        if mean:
            mean(p)
        else:
            all_reduce(p.grad, mesh.group("dp"))
            p.grad /= by or mesh.size("dp")


# right


def as_in_the_notebook(sets, mesh, ends, all_reduce):
    for p in sets.tied:  # its two uses
        all_reduce(p.grad, ends)
    for p in sets.replicated:  # its tokens
        all_reduce(p.grad, mesh.group("tp"))
    for p in [*sets.sharded, *sets.replicated, *sets.tied]:  # its rows
        all_reduce(p.grad, mesh.group("dp"))
        p.grad /= mesh.size("dp")


def in_lines(sets, mesh, ends, all_reduce):
    """One message for each set and group; a mean first, new gradients, in another
    order on every stage."""

    def summed(parameters, group, by=1):
        if parameters and dist.get_world_size(group) > 1:
            line = torch.cat([p.grad.flatten() / by for p in parameters])
            all_reduce(line, group)
            for p, piece in zip(
                parameters, line.split([p.numel() for p in parameters]), strict=True
            ):
                p.grad = piece.view_as(p).clone()

    summed(all_of(sets)[:: -1 if mesh.here["pp"] else 1], mesh.group("dp"), mesh.size("dp"))
    summed(sets.replicated, mesh.group("tp"))
    summed(sets.tied, ends)


def parameter_by_parameter(sets, mesh, ends, all_reduce):
    """From the last to the first; the mean by all_reduce itself."""
    for p in reversed(all_of(sets)):
        all_reduce(p.grad, mesh.group("dp"), op=dist.ReduceOp.AVG)
        if any(p is one for one in sets.replicated):
            all_reduce(p.grad, mesh.group("tp"))
        if any(p is one for one in sets.tied):
            p.grad = all_reduce(p.grad.clone(), ends)


# wrong


def calls_libs(sets, mesh, ends, all_reduce):
    hybrid.average_over_mesh(sets, mesh, ends, all_reduce)


def parameters_averaged(sets, mesh, ends, all_reduce):
    with torch.no_grad():
        for p in all_of(sets):
            all_reduce(p, mesh.group("dp"))
            p /= mesh.size("dp")


def list_made_longer(sets, mesh, ends, all_reduce):
    parameters = sets.sharded
    average_with(sets, mesh, ends, all_reduce)
    parameters += sets.replicated + sets.tied


def the_tied_one_of_every_stage(sets, mesh, ends, all_reduce):
    if ends is not None or mesh.size("pp") > 1:
        all_reduce(sets.tied[0].grad, ends)
    average_with(sets, mesh, ends, all_reduce, tied=lambda p: None)


def no_mean_at_all(sets, mesh, ends, all_reduce):
    average_with(sets, mesh, ends, all_reduce, mean=lambda p: None)


def first_of_each(sets, mesh, ends, all_reduce):
    average_with(
        sets._replace(sharded=sets.sharded[:1], replicated=sets.replicated[:1]),
        mesh,
        ends,
        all_reduce,
    )


def summed_in_a_copy(sets, mesh, ends, all_reduce):
    for p in sets.tied:
        all_reduce(p.grad.clone(), ends)
    for p in sets.replicated:
        all_reduce(p.grad.clone(), mesh.group("tp"))
    for p in all_of(sets):
        all_reduce(p.grad.clone(), mesh.group("dp")).div_(mesh.size("dp"))


def large_ones_lost(sets, mesh, ends, all_reduce):
    """Right for the parameters made by hand."""
    average_with(
        sets._replace(sharded=[p for p in sets.sharded if p.numel() < 20]), mesh, ends, all_reduce
    )


def tied_after_the_rest(sets, mesh, ends, all_reduce):
    """In a loop of its own, which divides by dp as well: twice, then."""
    average_with(sets, mesh, ends, all_reduce, tied=lambda p: None)
    for p in sets.tied:
        all_reduce(p.grad, ends)
        p.grad /= mesh.size("dp")


def replicated_summed_again(sets, mesh, ends, all_reduce):
    for p in sets.replicated:
        all_reduce(p.grad, mesh.group("tp"))
    average_with(sets, mesh, ends, all_reduce)


def tied_weighted(sets, mesh, ends, all_reduce):
    """The first stage's counts twice."""
    for p in sets.tied if mesh.here["pp"] == 0 else []:
        p.grad *= 2
    average_with(sets, mesh, ends, all_reduce)


def lib_s_all_reduce(sets, mesh, ends, all_reduce):
    average_with(sets, mesh, ends, collectives.all_reduce)


def torch_s_over_pp(sets, mesh, ends, all_reduce):
    """Hangs where there are stages between."""
    tied = lambda p: dist.all_reduce(p.grad, group=mesh.group("pp"))
    average_with(sets, mesh, ends, all_reduce, tied=tied)


def in_float32(sets, mesh, ends, all_reduce):
    """On the wire, and back."""

    def narrow(tensor, group):
        return tensor.copy_(all_reduce(tensor.float(), group))

    average_with(sets, mesh, ends, narrow)


KEPT = {}


def gradients_of_the_first_call(sets, mesh, ends, all_reduce):
    """By the number of the list: a second call writes what the first gave."""
    average_with(sets, mesh, ends, all_reduce)
    for i, p in enumerate(all_of(sets)):
        p.grad = KEPT.setdefault((i, p.shape), torch.zeros_like(p.grad)).copy_(p.grad)


def not_yet(sets, mesh, ends, all_reduce):
    raise NotImplementedError


WRONG = {
    calls_libs: "called what it builds",
    parameters_averaged: "the parameter, not its gradient",
    list_made_longer: "a list was changed",
    the_tied_one_of_every_stage: "an empty list",
    no_mean_at_all: "not summed over dp",
    first_of_each: "some left out",
    summed_in_a_copy: "nothing written back",
    large_ones_lost: "nothing written back",
    tied_after_the_rest: "divided twice",
    replicated_summed_again: "summed twice",
    tied_weighted: "summed twice",
    lib_s_all_reduce: "not what it was given",
    torch_s_over_pp: "not what it was given",
    in_float32: "rounded on the way",
    gradients_of_the_first_call: "one buffer for all calls",
    not_yet: "not written",
}
RIGHT = [
    as_in_the_notebook,
    in_lines,
    parameter_by_parameter,
    as_an_answer(hybrid.average_over_mesh),
]
