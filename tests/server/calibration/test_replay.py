from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from core.correction_table import pair_key
from core.drafters.base import DraftJob
from core.drafters.prompt_lookup import draft_by_lookup
from core.sequence import Sequence
from server.calibration.replay import lookup_corrections
from tests.tiny import Driver, make_request, make_runtime, random_model, random_prompt


def slow_corrections(prompt: list[int], answer: list[int], num_drafts: int) -> Counter[int]:
    """Round by round with the drafter itself on the text so far, as strict verification goes."""
    counts: Counter[int] = Counter()
    position = 1
    while position < len(answer):
        text = prompt + answer[:position]
        job = DraftJob(Sequence(make_request(text)), num_drafts)
        draft_by_lookup([job], 4)
        accepted = 0
        for draft in job.drafts:
            if position + accepted >= len(answer) or draft != answer[position + accepted]:
                break
            accepted += 1
        if accepted < len(job.drafts) and position + accepted < len(answer):
            counts[pair_key(job.drafts[accepted], answer[position + accepted])] += 1
        position += accepted + 1
    return counts


FEW = st.lists(st.integers(3, 6), min_size=1, max_size=25)


@settings(deadline=None)
@given(prompt=FEW, answer=FEW, num_drafts=st.integers(1, 6))
def test_replaying_an_answer_corrects_as_drafting_it_would(
    prompt: list[int], answer: list[int], num_drafts: int
) -> None:
    assert lookup_corrections(prompt, answer, num_drafts, 4) == slow_corrections(prompt, answer, num_drafts)


def test_the_engines_own_rounds_are_corrected_the_same() -> None:
    driver = Driver(make_runtime(random_model(3, sharpness=1.0)))
    prompt = random_prompt(30, 2) * 2
    request = make_request(prompt, drafter="prompt_lookup", num_draft_tokens=5, max_tokens=80, ignore_eos=True)
    (sequence,) = driver.run([request])
    corrected = Counter(
        pair_key(*item.corrected) for result in driver.rounds for item in result.items if item.corrected
    )
    assert lookup_corrections(prompt, sequence.output, 5, 4) == corrected != Counter()
