"""PipeDream: 1F1B that never flushes. Which weights does each action read? (Narayanan et al. 2019)

Every stage updates its weights after each B, at once, and the next mini-batch is already on its way. So the pipeline
never drains, and there is no bubble between two updates. The price: a mini-batch may run backward through other
weights than it ran forward with. Rank 0 of p = 4; u1 is the update that the backward of mini-batch 1 makes:

    0F0 0F1 0F2 0F3   0B0 u0   0F4   0B1 u1   0F5   0B2 u2   0F6   0B3 u3   0F7   0B4 u4   ...
                                |                                                  |
                     4 runs forward after u0                      ... and backward after u0, u1, u2, u3

(The paper counts from 1: mini-batch 5 forward after update 1, and updates 2 to 4 before its backward.)

Version k is what a stage's weights are after its first k updates. At stage i mini-batch j reads

                                forward              backward
    without stashing            max(0, j-(p-1-i))    j                  two different weights: no function's gradient
    with weight stashing        max(0, j-(p-1-i))    the same           a gradient, of weights p-1-i updates old

(The stages' weights are of different ages, p-1 updates old at the first, none at the last. Together they are still one
function, and what is computed is its gradient.)

Weight stashing keeps the weights that each mini-batch ran forward with until its B: stage i has p-i mini-batches under
way, so it keeps p-i versions, the newest among them. The last stage keeps just the one that everybody keeps.
"""

from lib.pipeline.schedules import one_f_one_b


def pipedream(p, n):
    """The order of PipeDream for n mini-batches: 1F1B's. Returns a list per rank.

    What is different is when weights change: after every B, not once after all of them.
    """
    return one_f_one_b(p, n)


def versions(p, n, stashing):
    """{Action: version of its stage's weights that it reads}, for n mini-batches over p ranks.

    Version k: after k updates of that stage. stashing: B reads the version that its F read; else the newest.
    """
    reads = {}
    for actions in pipedream(p, n):
        updates = 0
        for action in actions:
            forward = action._replace(kind="F")
            if action.kind == "B":
                reads[action] = reads[forward] if stashing else updates
                updates += 1
            else:
                reads[action] = updates
    return reads


def versions_kept(p, n):
    """[most versions of its weights that stage 0, 1, ... holds at a time, with stashing].

    p-i at stage i, once n is 2(p-i)-2 or more. Held are the newest and those of the mini-batches that have run forward
    and not backward.
    """
    reads = versions(p, n, stashing=True)
    most = []
    for actions in pipedream(p, n):
        under_way, updates, sizes = set(), 0, []
        for action in actions:
            if action.kind == "F":
                under_way.add(action)
            else:
                under_way.remove(action._replace(kind="F"))
                updates += 1
            sizes.append(len({updates, *(reads[forward] for forward in under_way)}))
        most.append(max(sizes))
    return most
