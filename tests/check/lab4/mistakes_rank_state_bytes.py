"""Known mistakes of rank_state_bytes, each named after its cause."""

from mistakes import Mistake, edit

CUT, TOTAL = "part in SHARDED[stage]", "N, precision).total"
MISTAKES = (
    Mistake("everything is cut", edit(f"(N if {CUT} else 1)", "N")),
    Mistake("everything is cut", edit(CUT, "stage")),
    Mistake("each stage by itself",
        edit('2: ("gradient", "master", "momentum", "variance")', '2: ("gradient",)').then(
            '3: ("weight", "gradient", "master", "momentum", "variance")', '3: ("weight",)'
        )),
    Mistake("the master copy is not cut", edit(CUT, f'{CUT} and part != "master"')),
    Mistake("the master copy is not cut", edit('1: ("master", ', "1: (").then(
        '2: ("gradient", "master", ', '2: ("gradient", ')),
    Mistake("refused, though allowed", edit("SHARDED or N < 1", "SHARDED or N <= 1")),
    Mistake("refused, though allowed", edit("stage not in SHARDED or N", "not stage or N")),
    Mistake("gradient before optimizer", edit('1: ("master", "momentum", "variance")',
        '1: ("gradient",)')),
    Mistake("a stage too late", edit(CUT, "part in SHARDED[max(stage - 1, 0)]")),
    Mistake("a stage too early", edit(CUT, "part in SHARDED[min(stage + 1, 3)]")),
    Mistake("4x, 8x, Nx",
        edit(
            f"rank_state(parameters, stage, {TOTAL}",
            "parameters * RECIPES[precision].total / {1: 4, 2: 8, 3: N}.get(stage, 1)",
        )),
    Mistake("the precision is not used", edit("RECIPES[precision], strict",
        'RECIPES["mixed"], strict')),
    Mistake("no master copy", edit(TOTAL, "N, precision)._replace(master=0).total")),
    Mistake("one moment", edit(TOTAL, "N, precision)._replace(variance=0).total")),
    Mistake("gradients forgotten", edit(TOTAL, "N, precision)._replace(gradient=0).total")),
    Mistake("of all ranks", edit(TOTAL, f"{TOTAL} * N")),
    Mistake("cut twice", edit(TOTAL, f"{TOTAL} / N")),
    Mistake("rounded", edit("each / (N", "each // (N")),
    Mistake("divided by // before it is multiplied",
        edit("parameters * each / (N if part in SHARDED[stage] else 1)",
             "parameters * (each // (N if part in SHARDED[stage] else 1))")),
    Mistake("parameters rounded up", edit("parameters * each / (N",
        "(parameters + -parameters % N) * each / (N")),
    Mistake("per parameter", edit("rank_state(parameters, ", "rank_state(1, ")),
    *(
        Mistake("another unit", edit(TOTAL, f"{TOTAL} / {unit}"))
        for unit in (1e3, 1e6, 1e9, 2**10, 2**20, 2**30)
    ),
)  # fmt: skip
