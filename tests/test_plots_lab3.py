"""Lab 3's figures: the claim in the title is the one in the numbers, and the same data give
the same bytes."""

import pytest
from figures import check_page

from lib import plots
from lib.cost import tp_sweep
from lib.tensor_parallel.layouts import contiguous, pairs_seen, zigzag

LAYOUTS = {"contiguous": contiguous(16, 4), "zigzag": zigzag(16, 4)}
KEPT = {"one process": 34e6, "tp 4": 16e6, "tp 4, sequence parallel": 8.5e6}
FORMULA = {"tp 4": 17e6, "tp 4, sequence parallel": 8.5e6}
INSIDE = {"inside a node": ([1, 2, 4, 8], [0.1, 0.055, 0.031, 0.02])}
ACROSS = {"across nodes": ([1, 2, 4, 8], [0.1, 0.08, 0.085, 0.15])}
FIGURES = {
    "sharded_linears": plots.sharded_linears,
    "on four ranks": lambda: plots.sharded_linears(4),
    "ring_attention_work": lambda: plots.ring_attention_work(LAYOUTS, note="16 tokens."),
    "zigzag alone": lambda: plots.ring_attention_work({"zigzag": zigzag(64, 8)}),
    "contiguous alone": lambda: plots.ring_attention_work({"contiguous": contiguous(7, 3)}),
    "activation_memory": lambda: plots.activation_memory(KEPT, FORMULA, note="D = 512."),
    "measured alone": lambda: plots.activation_memory({"keep": 2000, "regathered": 500}),
    "tp_volume": lambda: plots.tp_volume({**INSIDE, **ACROSS}, {**INSIDE, **ACROSS}),
    "predicted alone": lambda: plots.tp_volume({}, ACROSS),
    "attention_volume": lambda: plots.attention_volume(
        {"4 heads on 4": {"ring": ([2], [3.0]), "Ulysses": ([2], [2.0])}},
        {
            "4 heads on 4": {"ring": ([2, 4], [3.0, 9.0]), "Ulysses": ([2, 4], [2.0, 3.0])},
            "4 on 1": {"ring": ([2, 4], [0.5, 1.5]), "Ulysses": ([2, 4], [1.5, 2.0])},
        },
    ),
    "tp_rise": lambda: plots.tp_rise(tp_sweep.pairs(8, 16)),
    "of a step": lambda: plots.tp_volume(
        {"3.6 B": ([4, 8, 16], [4.5, 5.0, 10.7])}, {}, of="a step", domain=8
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_the_same_data_give_the_same_bytes_on_a_page_with_words(name):
    check_page(FIGURES[name](), FIGURES[name]())


@pytest.mark.usefixtures("words_only")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sharded_linears", ["on 2 ranks", "Between f and g nothing is sent"]),
        ("on four ranks", ["on 4 ranks"]),
        ("ring_attention_work",
         ["Contiguous: rank 3 computes 5.8 times rank 0's pairs", "after 59% of the time"]),
        ("ring_attention_work",
         ["rank 3 has 58 pairs, by step 10, 16, 16, 16", "zigzag: rank 0 has 34 pairs"]),
        ("zigzag alone", ["Zigzag: every rank computes 260 pairs"]),
        ("contiguous alone", ["Contiguous: rank 2 computes 2.2 times rank 0's pairs. "]),
        ("activation_memory",
         ["Tp 4, sequence parallel: 25% of the activations of one process", "D = 512."]),
        ("activation_memory",
         ["tp 4: 16 MB measured, 17 MB by the formula.", "one process: 34 MB measured."]),
        ("measured alone",
         ["Regathered: 25% of the activations of keep", "keep: 2,000 bytes measured."]),
        ("tp_volume",
         ["Inside a node tp=8 is the fastest, 20 ms; across nodes tp=2 is the fastest, 80 ms ("]),
        ("tp_volume",
         ["across nodes, measured: 100 ms at 1, 80 ms at 2, 85 ms at 4, 150 ms at 8."]),
        ("attention_volume", ["At cp = 4 least is sent by: Ulysses, 4 heads on 4; ring, 4 on 1"]),
        ("attention_volume",
         ["4 heads on 4, Ulysses, measured: 2 at 2.", "4 on 1, ring, predicted: 0.5 at 2, 1.5 at"]),
        ("tp_rise",
         ["From tp = 8 to 16, out of the NVLink domain, a step takes 1.5 to 2.1 times as long",
          "3.6B, micro-batch 2: step at the smaller tp"]),
        ("of a step", ["Time of a step against tp", "3.6 B, measured: 4.5 s at 4, 5 s at 8"]),
        ("predicted alone",
         ["Across nodes tp=2 is the fastest", "across nodes, predicted: 100 ms at 1"]),
    ],
)  # fmt: skip
def test_the_alt_text_holds_the_claim_and_the_numbers(name, words):
    for word in words:
        assert word in FIGURES[name]().alt


@pytest.mark.parametrize(("domain", "marked"), [(8, True), (4, True), (16, False), (2, False)])
def test_the_end_of_a_domain_is_marked_only_between_two_degrees(domain, marked):
    steps = {"3.6 B": ([4, 8, 16], [4.5, 5.0, 10.7])}
    assert (
        plots.tp_volume(steps, {}, domain=domain).png != plots.tp_volume(steps, {}).png
    ) == marked


@pytest.mark.usefixtures("words_only")
def test_the_pairs_drawn_are_those_that_are_computed():
    for name, layout in LAYOUTS.items():
        alt = FIGURES["ring_attention_work"]().alt
        for rank, steps in enumerate(pairs_seen(layout)):
            assert (
                f"rank {rank} has {sum(steps)} pairs, by step {', '.join(map(str, steps))}" in alt
            ), name
    # 58 and 34: the sum over the steps of the most pairs that a rank has to compute in it.
    slowest = [sum(map(max, zip(*pairs_seen(layout), strict=True))) for layout in LAYOUTS.values()]
    assert slowest == [58, 34] and f"{34 / 58:.0%}" == "59%"


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: plots.sharded_linears(1), "tp=1: a row per rank, 2 to 4"),
        (lambda: plots.sharded_linears(5), "tp=5"),
        (lambda: plots.ring_attention_work({}),
         r"0 layouts with \(tokens, ranks\) \[\]: one or two"),
        (lambda: plots.ring_attention_work({"a": [[0, 1], [1, 2]]}),
         r"a: \[\[0, 1\], \[1, 2\]\] are not"),
        (lambda: plots.ring_attention_work({"a": [[0], [1]], "b": [[0, 1], [2]]}),
         r"\[\(2, 2\), \(3, 2\)\]"),
        (lambda: plots.ring_attention_work({"a": [[0, 1]]}),
         r"\[\(2, 1\)\]: one or two, of one size, on 2 to 8 ranks"),
        (lambda: plots.activation_memory({"a": 1}),
         "measured a, predicted nothing: measure 2 to 6 ways"),
        (lambda: plots.activation_memory({"a": 1, "b": 2}, {"c": 1}), "measured a, b, predicted c"),
        (lambda: plots.activation_memory({"a": 1, "b": 0}),
         "b: 0 bytes; a layer keeps more than 0"),
        (lambda: plots.attention_volume({}, {}), r"predicted \[\]: 1 to 3 panels"),
        (lambda: plots.attention_volume({}, {"a": {"ring": ([1], [0])}}),
         r"a: ring sends \[0\] at cp \[1\]"),
        (lambda: plots.tp_rise([]), "0 pairs: 1 to 8"),
        (lambda: plots.tp_rise([tuple(reversed(tp_sweep.pairs(8, 16)[0]))]), "not a rise"),
        (lambda: plots.tp_volume({}, {}), "0 links: 1 to 8"),
        (lambda: plots.tp_volume({"a": ([1, 2], [1])}, {}),
         r"a: \(2,\) values of tp and \(1,\) times"),
        (lambda: plots.tp_volume({"a": ([0, 2], [1, 1])}, {}), "a: tp 0 or time 1"),
        (lambda: plots.tp_volume({}, {"a": ([1, 2], [1, 0])}),
         "a: tp 1 or time 0; tp begins with 1"),
    ],
)  # fmt: skip
def test_wrong_data_is_refused_with_its_numbers(draw, says):
    with pytest.raises(ValueError, match=says):
        draw()
