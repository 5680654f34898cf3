"""python -m lib.calibration score                             print the errors on published runs
python -m lib.calibration predict ROWS.csv --out OUT.csv    predict rows that have the columns of
                                                            lib/cost/data/rows.csv
python -m lib.calibration fit                               fit the parameters again, beginning with
                                                            their present values
"""

import argparse
import sys

from lib.calibration import fit, score
from lib.calibration.predict import predict_file
from lib.cost import ranges
from lib.cost.parameters import parameters


def parser():
    commands = argparse.ArgumentParser(
        prog="python -m lib.calibration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = commands.add_subparsers(dest="command", required=True)
    which.add_parser("score")
    which.add_parser("fit")
    rows = which.add_parser("predict")
    rows.add_argument("rows")
    rows.add_argument("--out", required=True)
    return commands


def fit_again():
    """Fit, write data/parameters.csv and data/residuals.csv, and print the errors in sample."""
    cases = fit.cases()
    fit.write(fit.fit(fit.thinned(cases), fit.now()))
    parameters.cache_clear()
    ranges.write(score.residuals())
    score.show("Step time, in sample: absolute percentage error", score.step_time(cases=cases))


def main():
    """Run one command. If `predict` cannot read or write a file, the program exits with the reason
    and without a traceback."""
    asked = parser().parse_args()
    if asked.command == "score":
        return score.main()
    if asked.command == "fit":
        return fit_again()
    try:
        done, left = predict_file(asked.rows, asked.out)
    except (ValueError, OSError) as reason:
        sys.exit(f"predict: {reason}")
    print(f"{done} rows predicted, {left} not (their reason is in the column note): {asked.out}")


if __name__ == "__main__":
    main()
