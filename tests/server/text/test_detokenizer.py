"""The incremental decoder against a decode of the whole."""

from hypothesis import given
from hypothesis import strategies as st

from server.text.detokenizer import Detokenizer

# Bytes that make multi-byte characters, broken and whole, likely.
awkward = st.sampled_from([0x41, 0x80, 0xA4, 0xBF, 0xC3, 0xE4, 0xED, 0xF0, 0x9F, 0x8E, 0x89, 0xF4, 0xFF])
chunks = st.lists(st.lists(awkward, max_size=4).map(bytes), max_size=12)
texts = st.lists(st.text(max_size=5).map(lambda text: text.encode("utf-8", "ignore")), max_size=6)


def slow_decode(data: bytes, more_follows: bool) -> str:
    """Decode all of it; drop a tail that only lacks bytes (one more byte could still make it valid)."""
    if more_follows:
        return data.decode("utf-8", "replace")
    for cut in range(1, min(3, len(data)) + 1):
        try:
            data[-cut:].decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.start == 0:
                return data[:-cut].decode("utf-8", "replace")
    return data.decode("utf-8", "replace")


@given(st.one_of(chunks, texts), st.booleans())
def test_pieces_join_to_the_decode_of_the_whole(pieces: list[bytes], more_follows: bool) -> None:
    detokenizer = Detokenizer()
    text = "".join(detokenizer.feed(piece) for piece in pieces) + detokenizer.close(more_follows)
    assert text == slow_decode(b"".join(pieces), more_follows)


@given(st.text(max_size=8))
def test_no_piece_ever_holds_half_a_character(text: str) -> None:
    data = text.encode("utf-8", "ignore")
    detokenizer = Detokenizer()
    shown = ""
    for byte in data:
        shown += detokenizer.feed(bytes([byte]))
        assert data.decode().startswith(shown)
        assert detokenizer.held <= 3
    assert shown == data.decode()
