"""Every claim of the LGQ paper's abstract, contributions, results and ablations, and whether it held for us.

Claims are in our words. Each has a rule that decides it from records alone.

    for verdict in judge(read_ledger("results")):
        verdict.claim.text, verdict.outcome, [finding.text for finding in verdict.findings]
"""

from dataclasses import dataclass

from lgq.report.claims import CLAIMS
from lgq.report.claims.claim import Claim
from lgq.report.ledger import Ledger
from lgq.report.rules import Finding, Outcome, overall


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    outcome: Outcome
    findings: tuple[Finding, ...]
    """What decided it."""


def judge(ledger: Ledger) -> list[Verdict]:
    """All claims, in the paper's order."""
    found = ((claim, claim.rule.decide(ledger)) for claim in CLAIMS)
    return [Verdict(claim, overall(findings), tuple(findings)) for claim, findings in found]


def counts(verdicts: list[Verdict]) -> dict[Outcome, int]:
    """How many claims came to each outcome."""
    return {outcome: sum(verdict.outcome is outcome for verdict in verdicts) for outcome in Outcome}
