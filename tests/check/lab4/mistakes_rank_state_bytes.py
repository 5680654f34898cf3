"""Known mistakes of rank_state_bytes, each named after its cause."""

from mistakes import Mistake, edit

CUT, TOTAL = "part in SHARDED[stage]", "N, precision).total"
MISTAKES = (
    Mistake("everything is cut", edit(f"(N if {CUT} else 1)", "N"),
        "only stage 3 cuts everything. Stage 0 cuts nothing, stage 1 the optimizer's three parts, "
        "stage 2 the gradient as well."),
    Mistake("everything is cut", edit(CUT, "stage")),
    Mistake("each stage by itself",
        edit('2: ("gradient", "master", "momentum", "variance")', '2: ("gradient",)').then(
            '3: ("weight", "gradient", "master", "momentum", "variance")', '3: ("weight",)'
        ),
        "stages add up: stage 2 cuts the gradient *and* what stage 1 cuts, stage 3 the weight and "
        "all of that."),
    Mistake("the master copy is not cut", edit(CUT, f'{CUT} and part != "master"'),
        "the master copy is the optimizer's, as momentum and variance are: from stage 1 on a rank "
        "keeps 1/N of all three."),
    Mistake("gradient before optimizer", edit('1: ("master", "momentum", "variance")',
        '1: ("gradient",)'),
        "stage 1 cuts the optimizer's parts, which are the largest. The gradient follows at stage "
        "2."),
    Mistake("a stage too late", edit(CUT, "part in SHARDED[max(stage - 1, 0)]"),
        "the optimizer is cut from stage 1 on, `stage >= 1`; the gradient from 2 on, the weight at "
        "3."),
    Mistake("a stage too early", edit(CUT, "part in SHARDED[min(stage + 1, 3)]"),
        "stage 0 is plain data parallelism: every rank has everything in full. The first part is "
        "cut at stage 1."),
    Mistake("4x, 8x, Nx",
        edit(
            f"rank_state(parameters, stage, {TOTAL}",
            "parameters * RECIPES[precision].total / {1: 4, 2: 8, 3: N}.get(stage, 1)",
        ),
        "4 x and 8 x are limits, for many ranks: the parts that are not cut stay, and on 4 ranks "
        "they are most of it. Add up the parts."),
    Mistake("the precision is not used", edit("RECIPES[precision], strict",
        'RECIPES["mixed"], strict'),
        "take the bytes of each part from RECIPES[precision]."),
    Mistake("no master copy", edit(TOTAL, "N, precision)._replace(master=0).total"),
        "in mixed precision the optimizer keeps three numbers of each parameter: master, momentum "
        "and variance."),
    Mistake("one moment", edit(TOTAL, "N, precision)._replace(variance=0).total"),
        "Adam keeps two moments of each parameter: momentum and variance."),
    Mistake("gradients forgotten", edit(TOTAL, "N, precision)._replace(gradient=0).total"),
            "the gradient is missing: full up to stage 1, 1/N of it for stage 2 and above."),
    Mistake("of all ranks", edit(TOTAL, f"{TOTAL} * N"),
        "that is what N ranks keep together. The function tells of one of them."),
    Mistake("cut twice", edit(TOTAL, f"{TOTAL} / N"),
            "what is not sharded is full on every rank, and the rest is divided by N once."),
    Mistake("rounded", edit("each / (N", "each // (N")),
    Mistake("divided by // before it is multiplied",
        edit("parameters * each / (N if part in SHARDED[stage] else 1)",
             "parameters * (each // (N if part in SHARDED[stage] else 1))"),
        "2 // 64 is 0: multiply by the parameters first, and divide with /."),
    Mistake("parameters rounded up", edit("parameters * each / (N",
        "(parameters + -parameters % N) * each / (N"),
        "padding to a multiple of N is left out here: divide the parameters as they are."),
    Mistake("per parameter", edit("rank_state(parameters, ", "rank_state(1, "),
        "that is the number of bytes for one parameter; multiply by the number of parameters."),
    *(
        Mistake("another unit", edit(TOTAL, f"{TOTAL} / {unit}"),
            "return plain bytes, and divide only to print: by 1e9 for GB.")
        for unit in (1e3, 1e6, 1e9, 2**10, 2**20, 2**30)
    ),
)  # fmt: skip
