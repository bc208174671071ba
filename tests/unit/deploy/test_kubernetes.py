"""The manifests: a configuration that the gateway takes, names and ports that meet, and times that fit into each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gateway.settings import Settings
from gateway.strict_yaml import read

ROOT = Path(__file__).parents[3]


def manifests(name):
    documents = yaml.safe_load_all((ROOT / "deploy/kubernetes" / name).read_text())
    return {each["kind"]: each for each in documents}


GATEWAY, ENGINE = manifests("gateway.yaml"), manifests("engine.yaml")


def pod(workload):
    return workload["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "gateway.yaml"
    path.write_text(GATEWAY["ConfigMap"]["data"]["gateway.yaml"])
    return read(path, Settings)


@pytest.fixture(scope="module")
def flags():
    (container,) = pod(ENGINE["StatefulSet"])["containers"]
    return dict(argument.removeprefix("--").split("=") for argument in container["args"])


def test_the_gateway_outlives_its_drain_and_the_engines_outlive_the_gateway(settings, flags):
    gateway_s = pod(GATEWAY["Deployment"])["terminationGracePeriodSeconds"]
    engine_s = pod(ENGINE["StatefulSet"])["terminationGracePeriodSeconds"]
    assert settings.drain.deadline_s < gateway_s < int(flags["shutdown-timeout"]) < engine_s


def test_every_engine_that_there_is_has_its_entry(settings):
    stateful_set = ENGINE["StatefulSet"]
    name, service = stateful_set["metadata"]["name"], stateful_set["spec"]["serviceName"]
    assert service == ENGINE["Service"]["metadata"]["name"]
    (port,) = ENGINE["Service"]["spec"]["ports"]
    assert [engine.url for engine in settings.engines] == [
        f"http://{name}-{number}.{service}:{port['port']}" for number in range(stateful_set["spec"]["replicas"])
    ]


def test_the_gateway_knows_the_flags_that_the_engines_have(settings, flags):
    for engine in settings.engines:
        assert engine.scheduling == flags["scheduling-policy"]
        for name in ("max_num_batched_tokens", "long_prefill_token_threshold", "max_num_seqs"):
            assert getattr(engine.limits, name) == int(flags[name.replace("_", "-")])
    assert settings.pools["chat"].models == (flags["model"],)


def test_what_is_probed_and_mounted_is_there(settings):
    spec = pod(GATEWAY["Deployment"])
    (container,) = spec["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": settings.listen.port, "ops": settings.ops.port}
    probes = [container[probe]["httpGet"] for probe in ("readinessProbe", "livenessProbe")]
    assert [(probe["path"], probe["port"]) for probe in probes] == [("/readyz", "ops"), ("/healthz", "ops")]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["config"] == "/etc/gateway"
    assert str(settings.auth.keys_file) == f"{mounts['keys']}/keys.yaml"
    assert {volume["name"] for volume in spec["volumes"]} == mounts.keys()
    assert GATEWAY["Deployment"]["spec"]["replicas"] == 1


def test_the_image_starts_what_the_manifest_mounts():
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    assert '"serve", "--config", "/etc/gateway/gateway.yaml"' in dockerfile
    for copied in re.findall(r"^COPY ([^-].*) \S+$", dockerfile, re.MULTILINE):
        assert all((ROOT / source).exists() for source in copied.split())
