"""Step times of published runs, chosen by their settings."""

from lib.cost.published import seconds_of


def test_seconds_of_runs_with_some_settings_ascend_by_the_key():
    by_tp = seconds_of("tp", source="vtrain-multi", model="gpt-3.6b", n_gpus=64, pp=1,
                       micro_batch=16)  # fmt: skip
    assert list(by_tp) == [2, 4, 8, 16] and all(seconds > 0 for seconds in by_tp.values())
    assert seconds_of("tp", source="nobody") == {}
