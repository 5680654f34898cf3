"""Lab 3, section 2: column_parallel(x, linears, group, enter) and row_parallel(x, linear, group, leave).

A rank's part of a layer has a weight and a bias, and is no module. Outputs and gradients are those of the whole layers.
"""

import torch

from lib.check.framework import Bundle, Claim, Exercise, Problem
from lib.check.lab1.calls import noting_calls
from lib.check.lab3.given import MAY_CALL, GivenMapping, only_these
from lib.check.lab3.groups import GROUPS_SAY, WORLD, agreed, backward, forward, found, measured
from lib.check.lab3.linear_cases import COLUMN_CASES, NARROW, ROW_CASES, B, T, columns, rows
from lib.check.lab3.linear_hints import COLUMN_HINTS, ROW_HINTS
from lib.tensor_parallel import linear, mappings


def _measure_columns(fn):
    call = lambda setting, group, enter: fn(setting.x, setting.layers, group, enter)
    return _measure(linear.column_parallel, mappings.copy_to_group, COLUMN_CASES, columns, call)


def _measure_rows(fn):
    call = lambda setting, group, leave: fn(setting.x, setting.layers[0], group, leave)
    return _measure(linear.row_parallel, mappings.reduce_from_group, ROW_CASES, rows, call)


def _measure(libs, mapping, cases, setting_of, call):
    """On every rank. setting_of(case, rank) -> Setting; call(setting, group, mapping) -> what the answer returns."""

    def one(case, rank, group, wire):
        where, given, setting = f"{case.where}: {case.rank(rank)}", GivenMapping(mapping, group), setting_of(case, rank)
        before = [t.detach().clone() for t in setting.tensors()]
        with noting_calls(libs) as calls:
            y = forward(case, call, setting, group, given)
        record = {"calls": given.calls, "gradient": None, "touched": None}
        if calls:
            record["problem"] = Problem("built-in", f"{where}: the answer calls lib's {libs.__name__}")
        else:
            record["problem"] = given.wrong_group(where) or setting.wrong_output(where, y)
        if not all(map(torch.equal, before, setting.tensors())):
            record["touched"] = Problem("touched", f"{where}: x, a weight or a bias has changed")
        record["ok"] = agreed(record["problem"] is None, wire)
        if record["ok"]:
            given.way = "backward"
            backward(case, setting.loss(y))
            record["gradient"] = setting.wrong_gradient(where)
            record["ok"] = record["gradient"] is None
        return record

    return measured(cases, one)


COLUMN_PARALLEL = Exercise(
    name="column_parallel",
    reference=linear.column_parallel,
    measure=_measure_columns,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("the rank's columns", 3, f"{GROUPS_SAY}; three layers", found(COLUMN_CASES)),
        Claim("gradients of the whole layers", 3, "of x, weights, biases", found(COLUMN_CASES, "gradient")),
        Claim("one all-reduce, backward", 2, "of BTD elements for all three; forward nothing", only_these(
            COLUMN_CASES, lambda case: {"forward": [], "backward": [B * T * NARROW]})),
        Claim("arguments left alone", 1, "x, weights, biases", found(COLUMN_CASES, "touched")),
    ),
    hints=COLUMN_HINTS,
)  # fmt: skip
ROW_PARALLEL = Exercise(
    name="row_parallel",
    reference=linear.row_parallel,
    measure=_measure_rows,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("the whole result", 3, f"{GROUPS_SAY}; no bias", found(ROW_CASES)),
        Claim("gradients of the whole layer", 3, "of x, weight, bias", found(ROW_CASES, "gradient")),
        Claim("one all-reduce, forward", 2, "of BTF elements; backward nothing", only_these(
            ROW_CASES, lambda case: {"forward": [B * T * NARROW], "backward": []})),
        Claim("arguments left alone", 1, "x, weight, bias", found(ROW_CASES, "touched")),
    ),
    hints=ROW_HINTS,
)  # fmt: skip
EXERCISE = Bundle("linear_layers", (COLUMN_PARALLEL, ROW_PARALLEL))
