"""A claim of the LGQ paper, in our words, with the rule that decides it."""

from dataclasses import dataclass

from lgq.report.columns import USED
from lgq.report.rules import Contestant, Finding, Outcome, Rule, all_of, between

FULL = 0.995
"""Share of codes from which on a codebook counts as fully used: an evaluation set misses some by chance."""


@dataclass(frozen=True)
class Claim:
    id: str
    where: str
    """In the paper: part, and label."""
    text: str
    paper: str
    """Its own numbers."""
    rule: Rule


def fully_used(experiment: str, *who: Contestant) -> Rule:
    return all_of(*(between(experiment, USED, each, least=FULL) for each in who))


def by_eye(pictures: str) -> Rule:
    """What no number decides."""
    seen = Finding(Outcome.NOT_RUN, f"not measured: look at {pictures}")
    return Rule("by eye, not decided here", lambda _: [seen])
