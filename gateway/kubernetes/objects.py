"""What a gateway reads of Kubernetes objects; everything else in them is skipped."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec


class ObjectIdentity(msgspec.Struct, frozen=True, rename="camel"):
    """Name, version and labels of an object, or the version of a list."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    following: str = msgspec.field(default="", name="continue")
    """The token for the next page of a list."""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class NamedObject(Protocol):
    """An object of any kind."""

    @property
    def metadata(self) -> ObjectIdentity:
        """Name, version and labels."""
        ...


Read = TypeVar("Read", bound=NamedObject)


@dataclass(frozen=True, slots=True)
class ApiResource(Generic[Read]):
    """A kind of object: its place in the API, and what is read of it."""

    version: str
    """Group and version as in the API's paths: `api/v1`, `apis/discovery.k8s.io/v1`."""
    plural: str
    kind: str
    read: type[Read]


class _ObjectReference(msgspec.Struct, frozen=True):
    """The object behind an endpoint."""

    name: str | None = None


class _EndpointConditions(msgspec.Struct, frozen=True):
    """The state of an endpoint; by the API, an unknown readiness (null) means ready."""

    ready: bool | None = None
    terminating: bool | None = None


class SliceEndpoint(msgspec.Struct, frozen=True, rename="camel"):
    """One endpoint of a slice: a pod."""

    addresses: list[str] | None = None
    conditions: _EndpointConditions | None = None
    target_ref: _ObjectReference | None = None


class EndpointPort(msgspec.Struct, frozen=True):
    """A port of all endpoints of a slice."""

    name: str | None = None
    port: int | None = None


class EndpointSlice(msgspec.Struct, frozen=True):
    """Some of the endpoints of a Service."""

    metadata: ObjectIdentity = ObjectIdentity()
    ports: list[EndpointPort] | None = None
    endpoints: list[SliceEndpoint] | None = None


class _ContainerPort(msgspec.Struct, frozen=True, rename="camel"):
    """A port that a container names."""

    name: str | None = None
    container_port: int | None = None


class _Container(msgspec.Struct, frozen=True):
    """One container of a pod."""

    ports: list[_ContainerPort] | None = None


class _ContainerGroupSpec(msgspec.Struct, frozen=True):
    """The containers of a pod."""

    containers: list[_Container] | None = None


class _ObjectCondition(msgspec.Struct, frozen=True):
    """One aspect of an object's state."""

    type: str = ""
    status: str = ""


class _ContainerGroupStatus(msgspec.Struct, frozen=True):
    """Address and state of a pod."""

    address: str = msgspec.field(default="", name="podIP")
    conditions: list[_ObjectCondition] | None = None


class ContainerGroup(msgspec.Struct, frozen=True):
    """A pod: containers with one address."""

    metadata: ObjectIdentity = ObjectIdentity()
    spec: _ContainerGroupSpec = _ContainerGroupSpec()
    status: _ContainerGroupStatus = _ContainerGroupStatus()

    @property
    def is_ready(self) -> bool:
        """Whether the pod is ready, and not about to end."""
        return (
            bool(self.status.address)
            and self.metadata.deletion_timestamp is None
            and any(each.type == "Ready" and each.status == "True" for each in self.status.conditions or ())
        )


class _LabelSelector(msgspec.Struct, frozen=True, rename="camel"):
    """Labels that objects must have."""

    match_labels: dict[str, str] = {}


class _PoolTarget(msgspec.Struct, frozen=True):
    """A port at which the pods of an InferencePool serve."""

    number: int


class _InferencePoolSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Which pods belong to an InferencePool, and where they serve."""

    selector: _LabelSelector = _LabelSelector()
    target_ports: list[_PoolTarget] = []


class InferencePool(msgspec.Struct, frozen=True):
    """A set of pods that serve models: an object of the Gateway API Inference Extension."""

    metadata: ObjectIdentity = ObjectIdentity()
    spec: _InferencePoolSpec = _InferencePoolSpec()


class ConfigMap(msgspec.Struct, frozen=True):
    """Texts by name."""

    metadata: ObjectIdentity = ObjectIdentity()
    data: dict[str, str] | None = None


class StoredSecret(msgspec.Struct, frozen=True):
    """A Secret: values by name, in base64. Its text form shows no value."""

    metadata: ObjectIdentity = ObjectIdentity()
    data: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"StoredSecret({self.metadata.name})"


ENDPOINT_SLICES = ApiResource("apis/discovery.k8s.io/v1", "endpointslices", "EndpointSlice", EndpointSlice)
PODS = ApiResource("api/v1", "pods", "Pod", ContainerGroup)
INFERENCE_POOLS = ApiResource(
    "apis/inference.networking.k8s.io/v1", "inferencepools", "InferencePool", InferencePool
)
CONFIG_MAPS = ApiResource("api/v1", "configmaps", "ConfigMap", ConfigMap)
SECRETS = ApiResource("api/v1", "secrets", "Secret", StoredSecret)
EVENTS = ApiResource("api/v1", "events", "Event", ConfigMap)
"""Events are made only, and never read."""


def label_selector(labels: Mapping[str, str]) -> str:
    """Return these labels as a query selects by them."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
