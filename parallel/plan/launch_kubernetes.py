"""Manifests of a job for Kubernetes: an Indexed Job that any cluster takes, and a Job of Volcano (all start, or none).

Devices are asked for by the name of the Ascend device plugin. Node 0 is found by its name in a headless Service.
A rank table is left out: it names devices, and here the scheduler chooses them.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import yaml

from mindspeed_ms.parallel.plan.launch import Launch, msrun, same_devices


def job_yaml(launch: Launch) -> str:
    """A Service and a batch/v1 Job whose pods have an index (Kubernetes 1.24 and later). Raises ConfigError."""
    nodes = len(launch.nodes)
    pod = _pod(launch, "kubernetes", f"{launch.name}-0.{launch.name}", '"$JOB_COMPLETION_INDEX"')
    spec = {
        "completions": nodes,
        "parallelism": nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"metadata": {"labels": {"app": launch.name}}, "spec": {**pod, "subdomain": launch.name}},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": launch.name},
        # Nodes look for the scheduler before it is ready.
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": launch.name}},
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": launch.name}, "spec": spec}
    return _dump([service, job])


def volcano_yaml(launch: Launch) -> str:
    """A Job of Volcano (batch.volcano.sh/v1alpha1) with its svc and env plugins. Raises ConfigError."""
    nodes = len(launch.nodes)
    # The svc plugin names pods job-task-index and gives them a Service of the job's name.
    master = f"{launch.name}-node-0.{launch.name}"
    pod = _pod(launch, "volcano", master, '"$VC_TASK_INDEX"')
    task = {"name": "node", "replicas": nodes, "template": {"spec": pod}}
    spec = {
        "minAvailable": nodes,
        "schedulerName": "volcano",
        "maxRetry": 1,
        "plugins": {"svc": [], "env": []},
        "policies": [{"event": "PodFailed", "action": "AbortJob"}],
        "tasks": [task],
    }
    kind = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}
    return _dump([{**kind, "metadata": {"name": launch.name}, "spec": spec}])


def _pod(launch: Launch, form: str, master: str, node_rank: str) -> dict[str, Any]:
    devices = same_devices(launch, form)
    launch = dataclasses.replace(launch, rank_table="", cores=(), placed=())
    # A name of a pod can be looked up only once it runs, and msrun gives up at once.
    wait = f"until getent hosts {master} > /dev/null; do sleep 1; done"
    script = "\n".join(["set -euo pipefail", wait, *msrun(launch, str(devices), master, node_rank)])
    amount = {launch.resource: devices}
    container = {
        "name": "ascend",
        "image": launch.image,
        "command": ["bash", "-c", _literal(script)],
        "env": [{"name": name, "value": _literal(value)} for name, value in sorted(launch.environment.items())],
        "resources": {"requests": amount, "limits": amount},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    # The 64 MB that a container has by default are too few for the workers of a data set.
    memory = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    return {"restartPolicy": "Never", "containers": [container], "volumes": memory}


def _literal(text: str) -> str:
    # Kubernetes puts variables in for $(NAME) unless the dollar is doubled, and one dollar for two wherever they are.
    return re.sub(r"\$(?=\()|\${2,}", lambda match: 2 * match[0], text)


class _Dumper(yaml.SafeDumper):
    pass


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
_Dumper.ignore_aliases = lambda self, data: True  # type: ignore[method-assign]


def _dump(documents: list[dict[str, Any]]) -> str:
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120)
