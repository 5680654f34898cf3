"""The course's shared package: collectives and parallel modules from send and receive, and what
measures them."""
