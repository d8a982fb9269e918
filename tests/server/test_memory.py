from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig

from server.device_memory import DeviceMemory
from server.memory import (
    SERVER_BYTES,
    ModelMemory,
    Room,
    by_device,
    default_tokens,
    kv_room,
    model_memory,
    tokens_that_fit,
    too_large,
)
from server.placement import Placement

GB = 10**9


def tiny_config() -> LlamaConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )


@pytest.mark.parametrize(
    ("device", "weights", "bytes_per_weight", "kv_per_token"),
    # 2 (keys and values) x 2 layers x 2 heads x 16 dimensions, in bytes of the activations' type
    [
        ("cuda:0", "bfloat16", 2, 256),
        ("cuda:0", "fp16", 2, 256),
        ("cuda:0", "float32", 4, 512),
        ("cpu", "float32", 4, 512),
        ("cpu", "bfloat16", 2, 256),
    ],
)
def test_plain_weights_and_kv_are_as_wide_as_their_type(
    device: str, weights: str, bytes_per_weight: int, kv_per_token: int
) -> None:
    placed = Placement(device, weights, "auto", False, None)  # type: ignore[arg-type]
    memory = model_memory(tiny_config(), placed)
    # embedding and output layer; per layer q and o, k and v, three of the MLP, two norms; the last norm
    assert memory.parameters == 2 * 100 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64) + 64
    assert memory.weights == bytes_per_weight * memory.parameters
    assert memory.kv_per_token == kv_per_token


def test_recorded_forwards_take_memory_of_their_own_for_each_model() -> None:
    placed = Placement("cuda:0", "bfloat16", "auto", False, None)
    plain = model_memory(tiny_config(), placed)
    recorded = model_memory(tiny_config(), replace(placed, graphs=True))
    assert plain.graphs == 0
    assert recorded.fixed == plain.fixed + recorded.graphs
    assert by_device([recorded, plain, recorded])["cuda:0"].graphs == 2 * recorded.graphs > 0


def test_room_for_kv_is_what_the_share_leaves_beside_what_is_used() -> None:
    assert kv_room(24 * GB, 17 * GB, 0.9) == pytest.approx(4.6 * GB)
    assert kv_room(24 * GB, 16 * GB, 0.9, scratch=1 * GB) == pytest.approx(4.6 * GB)
    assert kv_room(24 * GB, 22 * GB, 0.9) == 0


def test_the_device_with_the_least_room_decides() -> None:
    assert tokens_that_fit([Room(10_000, 10), Room(6_000, 10)], block_size=16) == 592
    assert tokens_that_fit([Room(159, 10)], block_size=16) == 0


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 1000)), min_size=1, max_size=3),
    st.sampled_from([1, 16, 256]),
)
def test_what_fits_fits_and_one_block_more_would_not(rooms: list[tuple[int, int]], block_size: int) -> None:
    tokens = tokens_that_fit([Room(*room) for room in rooms], block_size)
    assert tokens % block_size == 0
    assert all(tokens * per_token <= room for room, per_token in rooms)
    assert any((tokens + block_size) * per_token > room for room, per_token in rooms)


def test_models_of_one_device_are_added_up_but_their_rounds_run_in_turn() -> None:
    models = [ModelMemory("cuda:0", 7, 14, 3, 5), ModelMemory("cuda:0", 1, 2, 4, 6), ModelMemory("cpu", 1, 4, 5)]
    assert by_device(models) == {"cuda:0": ModelMemory("cuda:0", 8, 16, 7, 6), "cpu": ModelMemory("cpu", 1, 4, 5)}
    assert by_device(models)["cuda:0"].fixed == 16 + 6 + SERVER_BYTES["cuda"]


def test_weights_that_no_device_holds_are_named_with_what_is_free_and_what_there_is() -> None:
    models = [ModelMemory("cuda:0", 0, 70 * GB, 1), ModelMemory("cuda:0", 0, 16 * GB, 1)]
    (line,) = too_large(models, {"cuda:0": DeviceMemory(10 * GB, 80 * GB)})
    assert line.startswith("10.00 GB of cuda:0's 80.00 GB are free and the weights alone take 86.00 GB: ")
    assert not list(too_large(models, {"cuda:0": DeviceMemory(86 * GB, 96 * GB)}))
    assert not list(too_large(models, {"cuda:1": DeviceMemory(1, 1)}))


def test_without_a_devices_memory_to_divide_there_is_a_default_that_holds_the_longest_request() -> None:
    assert default_tokens(None, None) == default_tokens(None, 8192) == 32768
    assert default_tokens(None, 100_000) == 100_000
    assert default_tokens(1000, 500) == 1000
