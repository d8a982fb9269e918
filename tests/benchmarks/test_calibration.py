from collections import Counter

from benchmarks.calibration import record_mismatches
from core.correction_memory import CorrectionMemory
from core.models.runner import ModelRunner
from core.provenance import Provenance
from tests.naive import plain_logits
from tests.tiny import Driver, loaded, make_request, make_runtime, noisy_copy, random_model, random_prompt


def test_what_strict_rounds_correct_is_recorded_from_the_answer_alone() -> None:
    target = random_model(1)
    twin = noisy_copy(target)
    driver = Driver(make_runtime(target, twin))
    prompt = random_prompt(21, 7)
    request = make_request(prompt, drafter="model", num_draft_tokens=4, max_tokens=60, ignore_eos=True)
    (sequence,) = driver.run([request])
    answer, delivered = sequence.output, driver.delivered[id(sequence)]
    guesses = plain_logits(twin, prompt + answer).argmax(-1).tolist()[len(prompt) - 1 : -1]
    mismatches = [(guess, token) for guess, token in zip(guesses, answer, strict=True) if guess != token]
    corrected = [i for i, token in enumerate(delivered) if token.provenance is Provenance.CORRECTION]
    assert 0 < len(corrected) <= len(mismatches) < len(answer)
    assert all(guesses[i] != answer[i] for i in corrected)

    memory = CorrectionMemory()
    record_mismatches(memory, ModelRunner(loaded(twin), 6, 16), prompt, answer)
    memory.merge_round()
    table = memory.snapshot("multilevel")
    assert table.num_pairs == len(set(mismatches))
    assert all(table.count(*pair) == count for pair, count in Counter(mismatches).items())
