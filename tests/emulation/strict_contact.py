"""The first message of two ranks, in each direction: NCCL connects them in the call, on the host.

    ranks 0 and 1 of 4   each direction by itself  a send's host waits until the other has posted
                                                   its receive
    ranks 0 and 2 of 4,  both directions in one    what a rank posts first, a batch or one message,
    ranks 0 and 1 of 2   exchange                  the other must mirror in what it posts first

So two ranks of two that both send first, or both receive first, do not hang: NCCL has been seen to
raise an "internal error" (over sockets) or to read illegal memory (over shared memory). Once they
are connected, none of this holds.

Source: NCCL's src/transport.cc, ncclTransportP2pSetup; NVIDIA/nccl issues 2057 and 1279, pull
request 2407.
"""

import datetime

import torch.distributed as dist

from tests.emulation.strict_touch import BrokenRule

MIRROR = {"send": "recv", "recv": "send"}
FOR_EVER = datetime.timedelta(days=30)


class Contacts:
    """The connections of this rank: (group's name, peer) -> directions that are connected."""

    def __init__(self):
        self.connected = {}

    def meet(self, posts, group):
        """Connect this rank with those to whom `posts` have a message of a new direction;
        waits on the host."""
        new = {}
        for post in posts:
            if post.name in ("send", "recv_"):
                peer = post.given["dst" if post.name == "send" else "src"]
                if peer != group.rank() and post.name.strip("_") not in self.connected.get(
                    (group.group_name, peer), ()
                ):
                    new.setdefault(peer, {})[post.name.strip("_")] = post
        wanted = [
            question
            for peer, directions in new.items()
            for question in self._offer(group, peer, directions)
        ]
        for store, key, mirror, post in wanted:
            store.wait([key], FOR_EVER)
            if (posted := store.get(key).decode()) != mirror:
                raise BrokenRule(
                    f"first contact: {post.says()} needs a {mirror} of that rank, which posts a "
                    f"{posted}"
                )

    def _offer(self, group, peer, directions):
        """Say in the store what this rank posts; yields (store, key, what must stand there, post)
        of the other's."""
        name, me, n = group.group_name, group.rank(), group.size()
        before = self.connected.setdefault((name, peer), [])
        store = dist.distributed_c10d._world.pg_map[group][1]
        both = 2 * abs(me - peer) == n
        offers = (
            [(str(len(before)), sorted(directions))] if both else [(d, [d]) for d in directions]
        )
        before.extend(directions)
        for which, said in offers:
            mirror = [MIRROR[direction] for direction in said]
            store.set(f"contact/{name}/{me}/{peer}/{which}", " and ".join(said))
            other = which if both else mirror[0]
            yield (
                store,
                f"contact/{name}/{peer}/{me}/{other}",
                " and ".join(sorted(mirror)),
                directions[said[0]],
            )
