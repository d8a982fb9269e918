"""AuditInstruments: the audit's figures as metrics."""

from collections.abc import Iterable, Mapping

from server.audit.auditor import Auditor
from server.audit.replay import Findings
from server.telemetry import catalogue
from server.telemetry.instruments import Instruments


class AuditInstruments:
    """Tells of an auditor from now on."""

    def __init__(self, auditor: Auditor, instruments: Instruments) -> None:
        self._auditor = auditor
        auditor.observer = self
        self._answers = instruments.counter(catalogue.AUDIT_ANSWERS)
        self._audited = instruments.counter(catalogue.AUDIT_AUDITED_TOKENS)
        self._reconverged = instruments.counter(catalogue.AUDIT_RECONVERGED_TOKENS)
        self._own = instruments.counter(catalogue.AUDIT_OWN_SURPRISAL)
        self._delivered = instruments.counter(catalogue.AUDIT_DELIVERED_SURPRISAL)
        self._gap = instruments.histogram(catalogue.AUDIT_LOGPROB_GAP)
        instruments.gauge(catalogue.AUDIT_DEMOTED, self._demoted)

    def on_audit(self, verifier: str, findings: Findings) -> None:
        """Of one answer. The histogram takes nothing below 0, where the delivered text was no less likely: the mean gap
        is for the counters to tell."""
        labels = {"verifier": verifier}
        self._answers.add(1, labels)
        self._audited.add(len(findings.reconverged), labels)
        self._reconverged.add(sum(findings.reconverged), labels)
        self._own.add(-findings.own_logprob, labels)
        self._delivered.add(-findings.delivered_logprob, labels)
        self._gap.record(max(0.0, findings.gap), labels)

    def _demoted(self) -> Iterable[tuple[float, Mapping[str, str]]]:
        """1 for a verifier with a demoted set of parameters, 0 for the others that were audited."""
        figures = self._auditor.figures
        demoted = figures.demoted_verifiers()
        return [
            (float(verifier in demoted), {"verifier": verifier})
            for verifier in sorted({one.verifier for one in figures.sets()})
        ]
