from benchmarks.draft_length import curve, simulate
from benchmarks.workshop import Workshop
from core.forward_costs import ForwardCosts

COSTS = ForwardCosts(curve("1:100,4:110,8:150,16:220"), curve("1:30,8:40"))


def test_without_drafts_a_round_delivers_a_token_each() -> None:
    rate = Workshop(COSTS, acceptance=0.9, running=4, drafts=0, adaptive=False).tokens_per_second(50)
    assert rate == 4 / 110


def test_a_fixed_length_of_certain_drafts_delivers_whole_blocks() -> None:
    rate = Workshop(COSTS, acceptance=1.0, running=1, drafts=3, adaptive=False, answer=41).tokens_per_second(20)
    assert rate == 4 / (110 + 3 * 30)


def test_adaptive_lengths_follow_the_best_fixed_one_and_never_lose_much() -> None:
    hopeless, good = (simulate(COSTS, acceptance, 1, 200, 200) for acceptance in (0.1, 0.9))
    assert hopeless["adaptive"] > 0.97 > hopeless["2"] > hopeless["10"]
    assert good["adaptive"] > 0.9 * max(good.values()) > 1.3
