"""Lab 3, section 5: the vocabulary over the ranks, where the model begins and where it ends."""

from lib.check.framework import Bundle
from lib.check.lab3 import cross_entropy, embedding

EXERCISE = Bundle("vocabulary", (embedding.EXERCISE, cross_entropy.EXERCISE))
