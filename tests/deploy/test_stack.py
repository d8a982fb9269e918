"""What watches slipstream: the compose services beside it and their files, held against each other."""

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from server.telemetry import variables
from tests.conftest import ROOT
from tests.deploy.questions import BOARDS, STACK
from tests.deploy.test_compose import COMPOSE, SERVICES, said

WATCHERS: dict[str, dict[str, Any]] = {name: one for name, one in COMPOSE["services"].items() if name not in SERVICES}
DEPLOY_DOC = (ROOT / "docs" / "deploy.md").read_text("utf-8")
# What the core distribution of the collector is built with, as far as it is of use here.
COLLECTOR_PARTS = {
    "receivers": {"otlp", "prometheus"},
    "processors": {"memory_limiter", "batch", "attributes", "resource", "filter", "probabilistic_sampler"},
    "exporters": {"otlp_grpc", "otlp_http", "prometheus", "debug"},
    "extensions": {"health_check"},
}
JAEGER_PARTS = {
    "receivers": {"otlp"},
    "exporters": {"jaeger_storage_exporter"},
    "extensions": {"jaeger_storage", "jaeger_query", "healthcheckv2"},
}


def config(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((STACK / name).read_text("utf-8"))
    return loaded


def script(service: str) -> str:
    """What the service's shell runs, once compose has filled in its variables' defaults."""
    assert WATCHERS[service]["entrypoint"] == ["/bin/sh", "-ec"]
    (text,) = WATCHERS[service]["command"]
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text).replace("$$", "$")


def strings(value: object) -> Iterator[str]:
    match value:
        case dict():
            for one in value.values():
                yield from strings(one)
        case list():
            for one in value:
                yield from strings(one)
        case str():
            yield value


def test_up_alone_brings_all_of_it_and_slipstream_waits_for_none() -> None:
    assert set(WATCHERS) == {"collector", "jaeger", "prometheus", "grafana"}
    assert not any("profiles" in service for service in WATCHERS.values())
    assert not any("depends_on" in service for service in SERVICES.values())
    assert set(WATCHERS["grafana"]["depends_on"]) == set(WATCHERS) - {"grafana"}  # `up slipstream-gpu grafana`: all


def test_images_are_pinned_to_a_release_that_the_docs_name() -> None:
    for name, service in WATCHERS.items():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), name
        assert f"`{service['image']}`" in DEPLOY_DOC, name


def test_only_the_server_and_grafana_are_published_and_on_this_host_alone() -> None:
    published = {name: service["ports"] for name, service in COMPOSE["services"].items() if "ports" in service}
    assert set(published) == {*SERVICES, "grafana"}
    for ports in published.values():
        (port,) = ports
        assert re.match(r"\$\{\w+:-127\.0\.0\.1\}:", port)


def test_every_variable_is_in_the_docs() -> None:
    table = DEPLOY_DOC.partition("\n## Environment variables\n")[2].partition("\n## ")[0]
    asked = {name for text in strings(COMPOSE) for name in re.findall(r"(?<!\$)\$\{(\w+)", text)}
    for service in COMPOSE["services"].values():
        asked |= {name for name, value in service.get("environment", {}).items() if value is None}
        asked |= {name for name, value in service.get("build", {}).get("args", {}).items() if value is None}
    assert asked
    assert {name for name in asked if f"`{name}`" not in table} == set()


def test_every_file_named_is_there_and_readable_by_any_user() -> None:
    for name, service in WATCHERS.items():
        mounted = dict(volume.split(":", 1) for volume in service["volumes"])
        assert mounted["./configs/stack"] == "/etc/stack:ro", name
        named = {path for text in strings(service) for path in re.findall(r"/etc/stack/[\w./-]+", text)}
        assert named, name
        for path in named:
            assert (STACK / path.removeprefix("/etc/stack/")).exists(), path
        for here in mounted:
            assert not here.startswith("./") or list((ROOT / here).iterdir()), here
    provider = config("grafana/provisioning/dashboards/slipstream.yaml")["providers"][0]
    assert STACK / provider["options"]["path"].removeprefix("/etc/stack/") == BOARDS[0].parent
    for file in STACK.rglob("*"):
        assert file.stat().st_mode & stat.S_IROTH, file


def test_what_must_last_lies_in_volumes() -> None:
    for name, folder in (("prometheus", "/prometheus"), ("grafana", "/var/lib/grafana")):
        assert f"{name}:{folder}" in WATCHERS[name]["volumes"]
        assert name in COMPOSE["volumes"]
    assert "--storage.tsdb.path=/prometheus" in script("prometheus")


def test_prometheus_asks_where_the_others_answer() -> None:
    prometheus = config("prometheus.yml")
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in prometheus["scrape_configs"]}
    own = {
        name: config(f"{name}.yaml")["service"]["telemetry"]["metrics"]["readers"] for name in ("collector", "jaeger")
    }
    ports = {name: readers[0]["pull"]["exporter"]["prometheus"]["port"] for name, readers in own.items()}
    assert targets == {
        "slipstream": [f"slipstream:{said('cpu', 'EXPOSE')}"],
        **{name: [f"{name}:{port}"] for name, port in ports.items()},
    }
    assert SERVICES["slipstream-gpu"]["networks"]["default"]["aliases"] == ["slipstream"]
    assert [STACK / name for name in prometheus["rule_files"]] == [STACK / "alerts.yml"]


def test_spans_go_from_the_server_to_the_collector_to_jaeger_and_metrics_only_once() -> None:
    collector, jaeger = config("collector.yaml"), config("jaeger.yaml")
    for service in SERVICES.values():
        given = service["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
        endpoint = urlsplit(given.removeprefix("${OTEL_EXPORTER_OTLP_ENDPOINT-").removesuffix("}"))
        assert (endpoint.scheme, endpoint.hostname) == ("http", "collector")
        grpc = collector["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
        assert grpc == f"0.0.0.0:{endpoint.port}"
        assert service["environment"]["OTEL_METRICS_EXPORTER"] == "${OTEL_METRICS_EXPORTER:-none}"
    host, _, port = collector["exporters"]["otlp_grpc"]["endpoint"].partition(":")
    assert host in WATCHERS
    assert jaeger["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"] == f"0.0.0.0:{port}"
    assert set(collector["service"]["pipelines"]) == {"traces"}


@pytest.mark.parametrize(("given", "sent"), [(None, ["otlp_proto_grpc"]), ("", [])], ids=["default", "empty"])
def test_the_server_sends_spans_by_grpc_unless_told_not_to(
    given: str | None, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SERVICES["slipstream"]["environment"].items():
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, re.sub(r"\$\{\w+:?-([^}]*)\}", r"\1", value))
    if given is not None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", given)
    assert [exporter.name for exporter in variables.exporters("TRACES")] == sent
    assert variables.exporters("METRICS") == []


@pytest.mark.parametrize(
    ("name", "parts"), [("collector", COLLECTOR_PARTS), ("jaeger", JAEGER_PARTS)], ids=["collector", "jaeger"]
)
def test_pipelines_are_made_of_parts_that_are_there(name: str, parts: dict[str, set[str]]) -> None:
    loaded = config(f"{name}.yaml")
    used: dict[str, set[str]] = {"extensions": set(loaded["service"].get("extensions", ()))}
    for pipeline in loaded["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            used.setdefault(kind, set()).update(names)
    declared = {kind: set(loaded.get(kind, ())) for kind in parts}
    assert {kind: names for kind, names in used.items() if names} == {
        k: names for k, names in declared.items() if names
    }
    for kind, names in declared.items():
        assert names <= parts[kind]


def test_jaegers_health_check_asks_its_health_extension() -> None:
    port = config("jaeger.yaml")["extensions"]["healthcheckv2"]["http"]["endpoint"].rpartition(":")[2]
    assert WATCHERS["jaeger"]["healthcheck"]["test"][-1] == f"http://127.0.0.1:{port}/status"


def test_grafanas_sources_are_services_and_know_the_scrape_interval() -> None:
    sources = {one["uid"]: one for one in config("grafana/provisioning/datasources/stack.yaml")["datasources"]}
    assert set(sources) == {"prometheus", "jaeger"}
    for uid, source in sources.items():
        assert source["type"] == uid
        assert urlsplit(source["url"]).hostname == uid
    assert sources["prometheus"]["jsonData"]["timeInterval"] == config("prometheus.yml")["global"]["scrape_interval"]
    for folder in ("datasources", "dashboards"):
        mount = f"./configs/stack/grafana/provisioning/{folder}:/etc/grafana/provisioning/{folder}:ro"
        assert mount in WATCHERS["grafana"]["volumes"]
    home = WATCHERS["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.removeprefix("/etc/stack/") in {str(board.relative_to(STACK)) for board in BOARDS}


@pytest.mark.parametrize(
    ("keys", "first"),
    [("", ""), ("sk-a", "sk-a"), ("sk-a,sk-b", "sk-a"), ("sk-a, sk-b", "sk-a"), ('["sk-a", "sk-b"]', "sk-a")],
)
def test_prometheus_gets_the_first_key_in_a_file_that_nobody_else_reads(keys: str, first: str, tmp_path: Path) -> None:
    program = tmp_path / "prometheus"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    shell = script("prometheus").replace(WATCHERS["prometheus"]["tmpfs"], str(tmp_path))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLIPSTREAM_API_KEYS": keys}
    subprocess.run(["/bin/sh", "-ec", shell], env=environment, check=True, timeout=30)
    key = tmp_path / "key"
    assert key.read_text().strip() == first
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    named = config("prometheus.yml")["scrape_configs"][0]["authorization"]["credentials_file"]
    assert named == f"{WATCHERS['prometheus']['tmpfs']}/key"


@pytest.mark.parametrize("password", ["", "secret"])
def test_grafana_has_an_admin_only_with_a_password(password: str) -> None:
    shell = script("grafana").replace("/run.sh", "env")
    environment = {"PATH": os.environ["PATH"], "GF_SECURITY_ADMIN_PASSWORD": password}
    outcome = subprocess.run(["/bin/sh", "-ec", shell], env=environment, capture_output=True, text=True, timeout=30)
    assert ("GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION=true" in outcome.stdout) is (not password)
    assert ("GF_AUTH_DISABLE_LOGIN_FORM=true" in outcome.stdout) is (not password)
