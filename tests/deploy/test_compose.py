"""What the container files say, held against each other and against the server they start."""

import json
import re
import shutil
import subprocess
import sys
from typing import Any

import httpx
import pytest
import yaml

from server.settings import ServerSettings
from server.settings_loading import load_settings
from server.streaming import LAST_WORDS_SECONDS
from tests.conftest import ROOT
from tests.server.test_cli import free_port

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
# Slipstream's own; what watches it is held together in test_stack.py.
SERVICES: dict[str, dict[str, Any]] = {name: one for name, one in COMPOSE["services"].items() if "build" in one}
IMAGES = ("cpu", "gpu")
# A value that each variable passed on may have.
SAMPLES = {
    "SLIPSTREAM_API_KEYS": '["sk-1"]',
    "SLIPSTREAM_SERVED_MODEL_NAME": "mine",
    "SLIPSTREAM_MAX_CONTEXT": "1024",
    "SLIPSTREAM_KV_CACHE__TOKENS": "2048",
    "SLIPSTREAM_SERVER__CORS_ORIGINS": '["*"]',
    "SLIPSTREAM_THREADS": "2",
    "SLIPSTREAM_LOG_LEVEL": "debug",
    "SLIPSTREAM_LOG_FORMAT": "json",
    "SLIPSTREAM_AUDIT__SAMPLE_RATE": "0.1",
}

Instruction = tuple[str, str]


def instructions(stage: str) -> list[Instruction]:
    """The Dockerfile's stage of that name: its instructions and what they say, continued lines joined."""
    text = re.sub(r"\\\n", "", (ROOT / "Dockerfile").read_text("utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    begin = next(i for i, line in enumerate(lines) if re.fullmatch(rf"FROM \S+ AS {stage}", line))
    end = next((i for i in range(begin + 1, len(lines)) if lines[i].startswith("FROM ")), len(lines))
    return [(name, " ".join(rest.split())) for name, _, rest in (line.partition(" ") for line in lines[begin:end])]


def said(stage: str, name: str) -> str:
    """What the one instruction of that name says."""
    (found,) = [rest for instruction, rest in instructions(stage) if instruction == name]
    return found


def environment(stage: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in said(stage, "ENV").split())


def default(value: str) -> str:
    """`${NAME:-default}` -> default."""
    found = re.fullmatch(r"\$\{\w+:-(.+)\}", value)
    assert found, value
    return found[1]


def seconds(duration: str) -> int:
    found = re.fullmatch(r"(\d+)([smh])", duration)
    assert found, duration
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


@pytest.mark.parametrize("image", IMAGES)
def test_every_configuration_named_exists_and_is_valid_in_the_image(
    image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = environment(image)
    for name, value in inside.items():
        if name.startswith("SLIPSTREAM_"):
            monkeypatch.setenv(name, value)
    service = next(service for service in SERVICES.values() if service["build"]["target"] == image)
    for name in (inside["SLIPSTREAM_CONFIG"], default(service["environment"]["SLIPSTREAM_CONFIG"])):
        settings = load_settings(ROOT / name)
        assert settings.server.host == "0.0.0.0"
        assert str(settings.server.port) == said(image, "EXPOSE")
        assert str(settings.cache_dir) == said(image, "VOLUME")


@pytest.mark.parametrize("given", [True, False], ids=["given", "empty"])
@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_the_server_knows_every_variable_passed_on(
    service: dict[str, Any], given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {name for name in service["environment"] if name.startswith("SLIPSTREAM_")} - {"SLIPSTREAM_CONFIG"}
    assert names == set(SAMPLES)
    for name in names:
        monkeypatch.setenv(name, SAMPLES[name] if given else "")
    settings = load_settings(ROOT / "configs" / "tiny.yaml")
    assert (settings.max_context == 1024) is given
    assert bool(settings.server.api_keys) is given


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_a_service_keeps_its_cache_and_its_time_to_drain(service: dict[str, Any]) -> None:
    image = service["build"]["target"]
    assert service["image"] == f"slipstream:{image}"
    volumes = dict(volume.split(":", 1) for volume in service["volumes"])
    assert volumes["cache"] == said(image, "VOLUME") == environment(image)["SLIPSTREAM_CACHE_DIR"]
    assert "cache" in COMPOSE["volumes"]
    assert volumes["./configs"] == f"{said(image, 'WORKDIR')}/configs:ro"
    drain = ServerSettings.model_fields["drain_seconds"].default
    assert seconds(service["stop_grace_period"]) > drain + LAST_WORDS_SECONDS
    (port,) = service["ports"]
    assert port.endswith(f":{said(image, 'EXPOSE')}")


def test_the_cpu_image_is_the_default_and_the_gpu_waits_for_its_profile() -> None:
    last = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)[-1]
    assert last == "cpu"
    assert [name for name, service in SERVICES.items() if "profiles" not in service] == ["slipstream"]


def test_both_images_differ_only_in_what_they_are_for() -> None:
    def comparable(image: str) -> list[Instruction]:
        differences = rf"{image}-packages|configs/\w+\.yaml|--start-period=\w+"
        return [(name, re.sub(differences, "", rest)) for name, rest in instructions(image)[1:]]

    assert comparable("cpu") == comparable("gpu")
    assert environment("cpu").keys() == environment("gpu").keys()


def test_the_images_hold_the_packages_that_are_imported() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (found,) = re.findall(r"\[tool\.setuptools\.packages\.find\]\ninclude = (\[.*\])", project)
    packages = {name.rstrip("*") for name in json.loads(found)}
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in ignored
    assert packages | {"configs", "pyproject.toml"} == {line[1:] for line in ignored if line.startswith("!")}
    for image in IMAGES:
        (made,) = re.findall(r"mkdir ([\w ]+?) &&", " ".join(rest for _, rest in instructions(f"{image}-packages")))
        assert set(made.split()) == packages


def test_the_health_check_tells_a_ready_server_from_none(watched: httpx.Client) -> None:
    checks = [json.loads(said(image, "HEALTHCHECK").partition("CMD ")[2]) for image in IMAGES]
    checks += [service["healthcheck"]["test"][1:] for service in SERVICES.values()]
    assert all(check == checks[0] for check in checks)
    program, flag, code = checks[0]
    assert (program, flag) == ("python", "-c")

    def outcome(port: int) -> int:
        command = [sys.executable, "-c", code.replace(said("cpu", "EXPOSE"), str(port))]
        return subprocess.run(command, stderr=subprocess.DEVNULL, timeout=30).returncode

    assert watched.base_url.port
    assert outcome(watched.base_url.port) == 0  # it bears no key
    assert outcome(free_port()) != 0


@pytest.mark.parametrize("profile", [(), ("--profile", "gpu")], ids=["cpu", "gpu"])
def test_compose_itself_accepts_the_file(profile: tuple[str, ...]) -> None:
    compose = shutil.which("docker-compose")
    if compose is None:
        pytest.skip("docker-compose is not installed")
    outcome = subprocess.run([compose, *profile, "config"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 0, outcome.stderr
    assert "configs:ro" in outcome.stdout or "read_only" in outcome.stdout
