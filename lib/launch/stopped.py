"""What a run that a person has stopped still says: who waits for whom, who computes at which line,
and the figure."""

from lib import frontend
from lib.launch.errors import RankError


def show(error: RankError) -> None:
    """Print what the ranks did when the run was stopped, and in a notebook draw who waits for
    whom."""
    print(error, flush=True)
    figure(error)


def figure(error: RankError) -> None:
    """Draw who waits for whom, for a person in front of a notebook, if any rank waits for
    another."""
    if frontend.attended() and any(error.waits.values()):
        from lib.plots.messages import waits_for  # matplotlib takes a second to import

        labels = {rank: f"waits in {op}" for rank, op in error.waits_in.items()}
        waits_for(error.waits, labels).show()
