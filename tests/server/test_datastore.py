"""The datastore drafter from its files to an answer: what is read, and what is refused before anything is loaded."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from core.token_store import TokenStore
from server.assembly import AssemblyError, assemble, serving_config
from server.datastore import read_store
from server.datastore_settings import DatastoreError, DatastoreSettings
from server.model_folders import Folders
from tests.server import serving
from tests.server.test_assembly import assembled, generate, save_pair, settings_for

FOX = "the quick brown fox jumps over the lazy dog and the sea is wide and blue"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    (folder / "deep").mkdir(parents=True)
    (folder / "one.txt").write_text(FOX)
    (folder / "deep" / "two.txt").write_text("once upon a time there was a story")
    (folder / "deep" / "[odd].txt").write_text("naïve café, 你好世界")
    return folder


def store_of(*wanted: object, **options: Any) -> Any:
    settings = DatastoreSettings(files=tuple(map(str, wanted)), **options)
    return read_store(settings, serving.tokenizer(), serving.PADDED_VOCAB)


def ids(text: str) -> list[int]:
    tokens: list[int] = serving.tokenizer().encode(text, add_special_tokens=False)
    return tokens


def test_paths_and_patterns_name_files_each_read_once(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        store = store_of(files / "**" / "*.txt", files / "one.txt", files / "deep" / "[odd].txt")
    texts = [FOX, "once upon a time there was a story", "naïve café, 你好世界"]
    assert len(store) == sum(len(ids(text)) for text in texts)
    assert f"datastore: {len(store)} tokens of 3 files, tokenised in " in caplog.text
    for text in texts:
        tokens = ids(text)
        assert store.find(tokens[:2], len(tokens)).tokens == tokens[2:]


def test_a_home_folder_may_be_meant(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(files))
    assert len(store_of("~/one.txt")) == len(ids(FOX))


def test_what_the_target_has_no_row_for_ends_a_text(files: Path) -> None:
    tokens = ids(FOX)
    settings = DatastoreSettings(files=(str(files / "one.txt"),))
    store = read_store(settings, serving.tokenizer(), max(tokens))
    at = tokens.index(max(tokens))
    assert len(store) == len(tokens) - tokens.count(max(tokens))
    assert store.find(tokens[at - 2 : at], 3).tokens == []


def test_files_that_cannot_be_used_are_named(files: Path) -> None:
    (files / "latin.txt").write_bytes("naïve".encode("latin-1"))
    (files / "dangling.txt").symlink_to(files / "nowhere")
    for wanted, message in (
        (files / "none.txt", "no file matches .*none.txt"),
        (files / "*.md", r"no file matches .*\*\.md"),
        (files, r"is a folder; .*\*\*/\* names all files in it"),
        (files / "latin.txt", "latin.txt is no UTF-8 text: invalid continuation byte at byte 2"),
        (files / "dangling.txt", "cannot read .*dangling.txt: No such file or directory"),
    ):
        with pytest.raises(DatastoreError, match=rf"^speculation\.datastore: .*{message}"):
            store_of(wanted)


def test_too_many_tokens_are_refused(files: Path) -> None:
    with pytest.raises(DatastoreError, match=r"hold \d+ tokens already, and max_tokens is 20; name fewer files"):
        store_of(files / "**" / "*.txt", max_tokens=20)


def test_files_far_too_large_are_refused_by_their_sizes_unread(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(FOX)
    with (tmp_path / "huge.txt").open("wb") as file:
        file.write(b"\xff")  # no UTF-8: whoever reads it says that
        file.truncate(200_000_000)  # sparse: takes no room
    for read in (store_of, lambda *wanted: DatastoreSettings(files=tuple(map(str, wanted))).paths()):
        with pytest.raises(DatastoreError) as caught:
            read(tmp_path / "*.txt")
        assert str(caught.value) == (
            f"speculation.datastore: 2 files of 200.0 MB, the largest {tmp_path / 'huge.txt'}, hold more than "
            "max_tokens = 4000000 tokens, even of 16 bytes each; name fewer files, or raise it"
        )


async def test_a_server_drafts_from_its_files(files: Path) -> None:
    target = save_pair(files / "target")
    served = assembled(target, speculation={"datastore": str(files / "one.txt")})
    assert served.engine.drafters == ("prompt_lookup", "token_recycling", "datastore")
    plain, _ = await generate(assembled(target))
    served.engine._runtime.store = TokenStore([[5, 6, 7, *plain]])  # the random model says no word of its files
    drafted, finished = await generate(served, drafter="datastore", num_draft_tokens=4)
    assert drafted == plain
    assert finished.counters.accepted_tokens > 0


def test_it_is_refused_before_a_model_is_read(tmp_path: Path, files: Path) -> None:
    settings = settings_for(tmp_path / "no-model", speculation={"datastore": str(files / "none.txt")})
    with pytest.raises(AssemblyError, match="no file matches"):
        assemble(settings, Folders(tmp_path / "no-model", None))


def test_only_who_has_files_offers_it(tmp_path: Path, files: Path) -> None:
    without = serving_config(settings_for(tmp_path / "m"))
    having = serving_config(settings_for(tmp_path / "m", speculation={"datastore": str(files / "one.txt")}))
    assert set(having.allowed_drafters) - set(without.allowed_drafters) == {"datastore"}


@pytest.mark.parametrize("drafter", ["token_recycling", "datastore"])
async def test_requests_may_name_them(drafter: str) -> None:
    async with serving.running() as (_, client):
        body = serving.chat_body(drafter=drafter, max_tokens=30)
        answer = await client.post("/v1/chat/completions", json=body)
        if drafter == "datastore":
            message = serving.error_of(answer, 400, param="drafter")
            assert "'datastore' is not available: this server has no files for it (speculation.datastore)" in message
            assert "allowed: auto, model, prompt_lookup, multilevel, token_recycling." in message
        else:
            report = json.loads(answer.text)["speculation"]
            assert report["drafter"] == drafter
