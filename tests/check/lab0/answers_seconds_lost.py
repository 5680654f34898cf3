"""Answers to Lab 0's seconds_lost: wrong ones, each with the hint that it must get,
and right ones."""

INSIDE, BOTH = "tensor inside, data across", "tensor inside, pipeline across"
WAYS = ("data", "sharded", "tensor", "pipeline", INSIDE, BOTH)


def ring(n, N, alpha, beta):
    return 2 * (N - 1) * (alpha + n / N * beta)


def told_one_by_one(model, cluster, batch):
    """Right: one strategy after another."""
    M, R, W, L = cluster.nodes, cluster.per_node, model.parameters, model.layers
    N, state, found = M * R, 16 * model.parameters, {}
    link = cluster.across if M > 1 else cluster.inside
    A = 2 * model.sequence * model.hidden
    step = 6 * W * batch * model.sequence / (N * cluster.flops)
    message = link[0] + A * link[1]
    in_node = 4 * ring(A, R, *cluster.inside)  # of a layer and a sequence
    if state <= cluster.memory and batch >= N:
        found["data"] = ring(2 * W, N, *link)
    if state <= N * cluster.memory:
        if batch >= N:
            found["sharded"] = batch / N * 1.5 * ring(2 * W, N, *link)
        found["tensor"] = 4 * L * batch * ring(A, N, *link)
        if N <= L:
            found["pipeline"] = (2 * batch * message if N > 1 else 0) + step * (N - 1) / batch
        if M <= L:
            found[BOTH] = (
                L / M * batch * in_node
                + (2 * batch * message if M > 1 else 0)
                + step * (M - 1) / batch
            )
    if state <= R * cluster.memory and batch >= M:
        found[INSIDE] = L * batch / M * in_node + ring(2 * W / R, M, *link)
    return found


def sorted_by_seconds(model, cluster, batch):
    """Right: the fastest first."""
    found = told_one_by_one(model, cluster, batch)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def all_by_a_loop(model, cluster, batch):
    """Right: each strategy is t tensor ranks, p stages, d copies, and whether the
    state is sharded."""
    M, R = cluster.nodes, cluster.per_node
    N, link, A = (
        M * R,
        cluster.inside if M == 1 else cluster.across,
        2 * model.sequence * model.hidden,
    )
    table = {
        "data": (1, 1, N, 0), "sharded": (1, 1, N, 1), "tensor": (N, 1, 1, 0),
        "pipeline": (1, N, 1, 0),
        INSIDE: (R, 1, M, 0), BOTH: (R, M, 1, 0),
    }  # fmt: skip
    found = {}
    for way, (t, p, d, sharded) in table.items():
        held = 16 * model.parameters / (t * p * (d if sharded else 1))
        if held > cluster.memory or p > model.layers or d > batch:
            continue
        tensor = cluster.inside if t == R and way != "tensor" else link
        seconds = 4 * model.layers / p * batch / d * ring(A, t, *tensor)
        seconds += ring(2 * model.parameters / t / p, d, *link) * (
            1.5 * batch / d if sharded else 1
        )
        if p > 1:
            busy = 6 * model.parameters * batch * model.sequence / N / cluster.flops
            seconds += 2 * batch * (link[0] + A * link[1]) + (p - 1) / batch * busy
        found[way] = seconds
    return found


def returns_nothing(model, cluster, batch):
    print(told_one_by_one(model, cluster, batch))


def returns_the_best(model, cluster, batch):
    found = told_one_by_one(model, cluster, batch)
    return min(found, key=found.get)


def returns_pairs(model, cluster, batch):
    return {way: (1, seconds) for way, seconds in told_one_by_one(model, cluster, batch).items()}


def names_of_its_own(model, cluster, batch):
    return {
        way.replace("sharded", "ZeRO"): t
        for way, t in told_one_by_one(model, cluster, batch).items()
    }


def infinite_where_it_does_not_fit(model, cluster, batch):
    return dict.fromkeys(WAYS, float("inf")) | told_one_by_one(model, cluster, batch)


def no_pipeline(model, cluster, batch):
    return {
        way: t for way, t in told_one_by_one(model, cluster, batch).items() if way != "pipeline"
    }


def data_for_few_sequences(model, cluster, batch):
    """As if a copy of the model needed no memory where there are few sequences."""
    found = told_one_by_one(model, cluster, batch)
    return found | {"data": 1.0} if batch < 8 else found


def calls_lib(model, cluster, batch):
    from lib.cost import strategies

    return strategies.seconds_lost(model, cluster, batch)


def changed(*ways, factor=1.1):
    """Ten percent too much for these strategies."""

    def answer(model, cluster, batch):
        found = told_one_by_one(model, cluster, batch)
        return {way: t * factor if way in ways else t for way, t in found.items()}

    answer.__name__ = f"too_long_{ways[0].replace(' ', '_').replace(',', '')}"
    return answer


RIGHT = [told_one_by_one, sorted_by_seconds, all_by_a_loop]
WRONG = {
    returns_nothing: "nothing returned",
    returns_the_best: "not a dict of numbers",
    returns_pairs: "not a dict of numbers",
    names_of_its_own: "not the six",
    infinite_where_it_does_not_fit: "no such strategy",
    no_pipeline: "leaves out what fits",
    data_for_few_sequences: "takes what does not fit",
    calls_lib: "called what it builds",
    changed("data"): "seconds of data",
    changed("sharded"): "seconds of sharded",
    changed("tensor"): "seconds of tensor",
    changed("pipeline"): "seconds of pipeline",
    changed(INSIDE): f"seconds of {INSIDE}",
    changed(BOTH): f"seconds of {BOTH}",
}
