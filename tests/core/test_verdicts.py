"""What a token tells of its verification is what its own row says: the target, run plainly over the text before it."""

import dataclasses
import math

import pytest
import torch

from core.provenance import Provenance
from core.sequence import CommittedToken
from core.verifiers.params import VerifierParams
from tests.core.test_round import PROMPT, VERIFIERS, deliver, runtime_with, some_pairs, target_model
from tests.naive import plain_logits
from tests.tiny import make_request


def told(verifier: VerifierParams, **options: object) -> list[CommittedToken]:
    pairs = some_pairs() if verifier.type in ("csd", "hybrid") else {}
    request = make_request(
        PROMPT, verifier=verifier, drafter="model", num_draft_tokens=7, max_tokens=60, ignore_eos=True
    )
    return deliver(runtime_with(pairs), dataclasses.replace(request, **{"verdicts": True, **options}))[1]


@pytest.mark.parametrize("name", list(VERIFIERS))
def test_verdicts_are_what_the_plain_rows_say(name: str) -> None:
    delivered = told(VERIFIERS[name])
    rows = plain_logits(target_model(), [*PROMPT, *(token.token_id for token in delivered)])[len(PROMPT) - 1 :]
    judged = 0
    for token, row in zip(delivered, rows, strict=False):
        verdict = token.verdict
        assert verdict is not None
        assert verdict.choice == int(row.argmax())
        assert (token.token_id == verdict.choice) == (not token.provenance.loosened)
        assert (verdict.draft is None) == (token.provenance in (Provenance.BONUS, Provenance.TARGET))
        if token.provenance is Provenance.CORRECTION:
            assert verdict.draft != token.token_id
        elif verdict.draft is not None:
            assert verdict.draft == token.token_id
        if verdict.gap is not None:
            assert verdict.draft is not None
            assert verdict.gap == pytest.approx(float(row[verdict.draft] - row.max()), abs=1e-3)
            judged += 1
        else:
            assert not token.provenance.loosened
        if verdict.entropy is not None:
            seen = len(row) if name == "typical" else 3
            top = torch.softmax(row, 0).topk(seen).values.tolist()
            assert verdict.entropy == pytest.approx(-sum(p * math.log(p) for p in top), abs=1e-3)
        asks = name.startswith(("fly", "hybrid", "typical"))
        assert (verdict.entropy is not None) == (verdict.gap is not None and asks)
    assert (judged > 0) == (name != "strict")


def test_nothing_is_kept_for_requests_that_do_not_ask() -> None:
    assert {token.verdict for token in told(VERIFIERS["lossy"], verdicts=False)} == {None}
