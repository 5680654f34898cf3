"""ZeRO-2: gradients are reduce-scattered during backward, and each rank frees what it does not own.

    this thread     [ forward ][ backward: w3   w2   w1   w0 ][ wait ][ update shard ][ all-gather ]
                                           |hook|hook|hook
    communication                          [= flat 0 =][= flat 1 =][= flat 2 =]
    gradients kept  shard only             +1..3 flats, never the whole model's           shard only

ZeRO-1 keeps psi gradients until backward ends. Here the hook of a flat's last gradient starts the
flat's reduce-scatter. The parameters' gradients are freed at once, and the flat buffer when it has
been sent. At most MAX_IN_FLIGHT buffers are in flight: backward waits for the oldest before it
sends another, because on a slow link the buffers would otherwise add up to psi again.

With k micro-batches there is no full gradient to accumulate in, so the gradients of each one are
sent. This makes (k+1) (N-1)/N psi elements per rank and step, where ZeRO-1 sends 2 (N-1)/N psi.

Source: ZeRO (Rajbhandari et al. 2020, section 5.2).
"""

from collections import deque
from typing import Any

from lib import collectives
from lib.training.buckets import gradient_came_twice, when_gradient_is_ready
from lib.zero.guards import check_still_frozen
from lib.zero.zero1 import Zero1

MAX_IN_FLIGHT = 2  # flat buffers of gradients that are being sent or waiting to be sent


# exercise: lab4.Zero2
class Zero2(Zero1):
    """Zero1, with gradients reduce-scattered while backward runs. Used in the same way, except for
    micro-batches:

        for microbatch in microbatches:
            (model.loss(*microbatch) / k).backward()
            zero.average_gradients()                     # after every backward: shards accumulate
        zero.step()
        zero.zero_grad()

    reduce_scatter runs on the communication thread, so do not use the group for anything else from
    backward to the end of `average_gradients`. All ranks send the same flats in the same order. If
    a rank did not use some parameter, it sends that parameter's flat, and all flats after it, in
    `average_gradients`. A second backward before `average_gradients` raises RuntimeError.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.index_of = {p: i for i, flat in enumerate(self.in_order) for p in flat.parameters}
        self._begin_backward()
        when_gradient_is_ready(self.index_of, self._gradient_is_ready)

    def _begin_backward(self):
        # per flat: the parameters whose gradients are not ready
        self.missing = [set(flat.parameters) for flat in self.in_order]
        self.n_sent = 0  # how many flats of in_order have been sent
        self.in_flight = deque()  # (flat, work)

    def _gradient_is_ready(self, parameter):
        missing = self.missing[self.index_of[parameter]]
        if parameter not in missing:
            raise gradient_came_twice(
                parameter,
                "ZeRO-2 sends every micro-batch: call average_gradients() after each",
                "Zero1",
            )
        missing.remove(parameter)
        # All ranks must send in the same order, so a flat that is complete early waits until those
        # before it have been sent.
        while self.n_sent < len(self.in_order) and not self.missing[self.n_sent]:
            self._send_next()

    def _send_next(self):
        if self.n_sent == 0:
            check_still_frozen(self.frozen)
        if len(self.in_flight) == MAX_IN_FLIGHT:
            self._finish_oldest()
        flat = self.in_order[self.n_sent]
        self.in_flight.append(
            (flat, collectives.start(self.reduce_scatter, flat.flatten_gradients(), flat.group))
        )
        self.n_sent += 1

    def _finish_oldest(self):
        flat, work = self.in_flight.popleft()
        flat.add_gradient(work.wait())

    def average_gradients(self) -> None:
        """Send the flats that have not been sent, and wait until the mean is in every shard's
        `.grad`. Call it after each backward."""
        while self.n_sent < len(self.in_order):
            self._send_next()
        while self.in_flight:
            self._finish_oldest()
        self._begin_backward()
