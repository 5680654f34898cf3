"""lib.measuring.links: the line through a ping-pong's times, and measured links."""

import numpy as np
import pytest

from lib import launch
from lib.measuring import links, rounds
from lib.measuring.links import fit, of_the_slowest, ping_pong, race, sizes_for


def test_the_line_is_found_again_also_where_the_times_are_off():
    sizes = np.array(sizes_for("gloo"))
    exact = 90e-6 + sizes / 2e9
    assert fit(sizes, exact) == pytest.approx((90e-6, 1 / 2e9))
    off = exact * np.array([1.1, 0.9, 1.1, 0.9, 1.1, 0.9, 1.1])
    assert fit(sizes, off) == pytest.approx((90e-6, 1 / 2e9), rel=0.2)


def test_a_collective_has_ended_when_its_last_rank_has():
    ranks = [{"ring": np.array([1.0, 5.0])}, {"ring": np.array([3.0, 2.0])}]
    assert of_the_slowest(ranks)["ring"].tolist() == [3.0, 5.0]


LINK = {"seconds_per_message": 0.002, "bytes_per_second": 50e6}


def test_a_message_takes_what_its_link_takes():
    seconds = launch.run(ping_pong, [4, 500_000], 2, 1, LINK, nproc=2, ledger=False)[0]
    assert seconds.shape == (2, 2) and (seconds >= [0.002, 0.012]).all()
    raced = race({"nothing": lambda x: None}, [4, 400], LINK, nproc=2)
    assert raced["nothing"].shape == (6, 2)


@pytest.mark.parametrize("found", [True, False])
def test_links_that_could_not_be_measured_have_typical_values(monkeypatch, found, capsys):
    t = {
        "here": np.tile(90e-6 + np.array(sizes_for("gloo")) / 2e9, (6, 1)),
        "emulated": np.tile(0.005 + np.array(links.SIZES[:5]) / 20e6, (6, 1)),
    }
    monkeypatch.setattr(links.backend, "choose", lambda *_: type("Chosen", (), {"name": "gloo"}))

    def measure(run, *claims):
        assert all(claim.judge(t)[0] == "holds" for claim in claims)
        return t if found else None

    monkeypatch.setattr(links, "measure", measure)
    here, slow = links.measure_links({"seconds_per_message": 0.005, "bytes_per_second": 20e6})
    assert (here.measured, slow.measured) == (found, found)
    assert (slow.alpha, slow.beta) == pytest.approx((0.005, 1 / 20e6))
    assert here.alpha == pytest.approx(90e-6 if found else 1e-4)
    assert ("bandwidth 20 MB/s" in capsys.readouterr().out) == found
    if found:
        assert here.times_as_long(4_000_000) == pytest.approx(2090 / 90, rel=0.01)
    assert rounds.Claim is links.Claim


def test_a_message_takes_as_many_times_as_long_as_the_claim_says(monkeypatch, capsys):
    """The median of the rounds' ratios, which differs from the ratio of the medians."""
    t = {
        "here": np.tile(90e-6 + np.array(sizes_for("gloo")) / 2e9, (3, 1)),
        "emulated": np.tile(0.005 + np.array(links.SIZES[:5]) / 20e6, (3, 1)),
    }
    t["here"][:, 0] = 1, 2, 3
    t["here"][:, sizes_for("gloo").index(4_000_000)] = 30, 10, 12  # ratios 30, 5 and 4
    monkeypatch.setattr(links.backend, "choose", lambda *_: type("Chosen", (), {"name": "gloo"}))
    said = []
    monkeypatch.setattr(links, "measure", lambda _, claim, *others: said.append(claim) or t)
    here, _ = links.measure_links({"seconds_per_message": 0.005, "bytes_per_second": 20e6})
    assert here.times_as_long(4_000_000) == np.median(said[0].value(t)) == 5
