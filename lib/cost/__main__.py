"""python -m lib.cost score                             errors against published runs
python -m lib.cost predict ROWS.csv --out OUT.csv    predict rows of the columns
                                                     of lib/cost/data/rows.csv
python -m lib.cost plan --model gpt-3-175b --gpu A100-80GB --gpus 1024 --batch 1536
                                                     what fits, how fast, how sure
python -m lib.cost fit                               fit the parameters again, from what they are
"""

import argparse
import sys

from lib.cost import explain, ranges
from lib.cost.parameters import parameters
from lib.cost.plan import RECOMPUTE
from lib.cost.predict import predict_file
from lib.cost.study import fit, score

FIXED = ("tp", "pp", "dp", "cp", "ep", "v", "micro_batch", "zero")


def parser():
    commands = argparse.ArgumentParser(
        prog="python -m lib.cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = commands.add_subparsers(dest="command", required=True)
    which.add_parser("score")
    which.add_parser("fit")
    rows = which.add_parser("predict")
    rows.add_argument("rows")
    rows.add_argument("--out", required=True)
    plan = which.add_parser("plan")
    plan.add_argument(
        "--model", required=True, help="a name in lib/cost/data/models.csv, or a .json file"
    )
    plan.add_argument("--gpu", required=True, help="a name in lib/cost/data/machines.csv")
    plan.add_argument("--gpus", type=int, required=True)
    plan.add_argument("--batch", type=int, required=True, help="sequences per step, over all GPUs")
    plan.add_argument("--seq", type=int, help="tokens per sequence (default: the model's, 2048)")
    plan.add_argument("--precision", default="bf16", choices=("bf16", "fp8", "fp4"))
    plan.add_argument(
        "--tokens",
        type=float,
        default=1e9,
        help="of the whole training, for GPU-hours (default: 1e9)",
    )
    for name in FIXED:
        plan.add_argument(
            f"--{name.replace('_', '-')}", type=int, help=f"only plans with this {name}"
        )
    plan.add_argument("--recompute", choices=RECOMPUTE, help="only plans that recompute this")
    plan.add_argument("--show", type=int, default=10, help="how many of the best plans to print")
    return commands


def main():
    """Run one command; a request that cannot be met ends with its reason, not with a traceback."""
    asked = parser().parse_args()
    try:
        if asked.command == "score":
            score.main()
        elif asked.command == "fit":
            cases = fit.cases()
            fit.write(fit.fit(fit.thinned(cases), fit.now()))
            parameters.cache_clear()
            ranges.write(score.residuals())
            score.show(
                "Step time, in sample: absolute percentage error", score.step_time(cases=cases)
            )
        elif asked.command == "predict":
            done, left = predict_file(asked.rows, asked.out)
            print(
                f"{done} rows predicted, {left} not (their reason is in the column note): "
                f"{asked.out}"
            )
        else:
            fixed = {name: getattr(asked, name) for name in (*FIXED, "recompute")}
            fixed = {name: value for name, value in fixed.items() if value is not None}
            job = (
                asked.gpus,
                asked.batch,
                asked.seq,
                asked.precision,
                asked.show,
                asked.tokens,
                fixed,
            )
            print(explain.report(asked.model, asked.gpu, *job))
    except (ValueError, OSError) as reason:
        sys.exit(f"{asked.command}: {reason}")


if __name__ == "__main__":
    main()
