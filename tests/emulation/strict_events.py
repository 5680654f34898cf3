"""torch.cuda's events, as far as code on ranks asks for them: has all been executed that comes
before?

    all_reduce(x)
    event = current_stream().record_event()
    ...
    event.query()  # False until x is summed

Tensors stay on the CPU, so `rules` (strict.py) tells what this thread's stream, had it one, would
be waiting for.
"""


class Event:
    """Done when all has been executed that the recording thread's stream waited for. As
    torch.cuda.Event."""

    def __init__(self, rules):
        self.rules, self.items = rules, []

    def record(self, stream=None):
        self.items = self.rules.ahead()

    def query(self):
        done = all(item.done.is_set() for item in self.items)
        if done:
            self.rules.tidy()
        return done

    def synchronize(self):
        for item in self.items:
            item.done.wait()

    def wait(self, stream=None):
        pass


class CurrentStream:
    def __init__(self, rules):
        self.rules = rules

    def record_event(self, event=None):
        event = event or Event(self.rules)
        event.record()
        return event

    def wait_event(self, event):
        pass

    def synchronize(self):
        self.record_event().synchronize()
