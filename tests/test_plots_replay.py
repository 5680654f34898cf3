"""A replay shows the messages of a run round by round; its picture is the first round."""

import json
import re
from types import SimpleNamespace

import pytest

from lib import frontend, plots
from lib.plots.messages import rounds


def message(op, rank, peer, at, numel=1000):
    facts = {"op": op, "rank": rank, "peer": peer, "tag": 0, "numel": numel}
    return SimpleNamespace(**facts, posted=at + 0.01 * rank, wait_to=at + 0.5)


def ring(n=4, steps=3):
    return [
        message(op, r, (r + way) % n, step)
        for step in range(steps)
        for r in range(n)
        for op, way in (("send", 1), ("recv", -1))
    ]


def data_of(replay):
    return json.loads(re.search(r"data = (\{.*?\});\n", replay.html)[1])


def test_the_rounds_are_those_of_message_rounds(words_only):
    replay = plots.replay(ring())
    data = data_of(replay)
    assert data["rounds"] == [[[e.rank, e.peer] for e in panel] for panel in rounds(ring())]
    assert data["rounds"] == 3 * [[[0, 1], [1, 2], [2, 3], [3, 0]]]
    assert len(data["places"]) == len(data["colors"]) == 4
    assert data["said"][1] == ("round 2 of 3: 0 to 1, 1 to 2, 2 to 3, 3 to 0; 1,000 elements each")
    assert data["said"][-1] == "done: 12 messages in 3 rounds"
    assert 'type=range min=0 max=3 step=0.125 value=0 aria-label="Round"' in replay.html


def test_results_and_ledgers_are_taken_as_well(words_only):
    ledger = SimpleNamespace(entries=ring())
    for given in (ledger, SimpleNamespace(ledger=ledger)):
        assert data_of(plots.replay(given)) == data_of(plots.replay(ring()))


def test_where_nobody_looks_it_is_the_picture_of_the_first_round_alone(words_only, monkeypatch):
    replay = plots.replay(ring(), title="The <ring>")
    data, metadata = replay._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"} and metadata["image/png"]["alt"] == replay.alt
    assert "The <ring>" in replay.alt and "<ring>" not in replay.html
    monkeypatch.setattr(frontend, "attended", lambda: True)
    assert set(replay._repr_mimebundle_()[0]) == {"image/png", "text/plain", "text/html"}


def test_a_run_without_messages_or_ledger_is_refused(words_only):
    with pytest.raises(ValueError, match="0 rounds of messages"):
        plots.replay([])
    with pytest.raises(ValueError, match="this run kept no ledger"):
        plots.replay(SimpleNamespace(ledger=None))
