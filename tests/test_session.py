"""From a place and a connection to a store and a backend."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.config import Config

from airflow_spot import session
from airflow_spot.errors import BatchUnavailable, ConfigurationError

AWS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE",
       "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")  # fmt: skip


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No AWS settings of the one who runs the tests, and nothing kept."""
    for name in AWS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    session.forget()
    yield
    session.forget()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """An S3 server with the bucket ``bucket``."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    client.create_bucket(Bucket="bucket")
    client.close()
    yield url
    server.stop()


def connection(monkeypatch: pytest.MonkeyPatch, **extra: Any) -> None:
    value = {"conn_type": "aws", "login": "key", "password": "secret", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_GPU", json.dumps(value))


@pytest.mark.parametrize("where", ["endpoint_url", "service_config"])
def test_connection_reaches_the_store(where: str, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoint, of the connection or of its S3 alone, region and keys of a connection count for the store too."""
    extra = {"endpoint_url": s3} if where == "endpoint_url" else {"service_config": {"s3": {"endpoint_url": s3}}}
    connection(monkeypatch, region_name="eu-west-1", **extra)
    made = session.connect("s3://bucket/runs/dag/run/train/-1", aws_conn_id="gpu")
    assert made.store.put("x.json", b"{}")
    assert made.object_modified("s3://bucket/runs/dag/run/train/-1/x.json") is not None
    assert made.object_modified("s3://bucket/runs/missing") is None
    assert (made.region, made.bucket_region) == ("eu-west-1", "us-east-1" if where == "" else "eu-west-1")


def test_each_service_has_its_own_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection's service_config counts for each client by itself."""
    connection(
        monkeypatch,
        region_name="eu-west-1",
        endpoint_url="http://127.0.0.1:1",
        service_config={"batch": {"endpoint_url": "http://127.0.0.1:2"}},
    )
    clients = session.connect("memory://x/run", aws_conn_id="gpu").backend.clients
    found = [clients.batch.meta.endpoint_url, clients.batch_once.meta.endpoint_url, clients.ec2.meta.endpoint_url]
    assert found == ["http://127.0.0.1:2", "http://127.0.0.1:2", "http://127.0.0.1:1"]


def test_botocore_config_and_region_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments win over the connection; a submit still never repeats itself."""
    connection(monkeypatch, region_name="eu-west-1")
    made = session.connect(
        "memory://x/run", aws_conn_id="gpu", region_name="us-west-2", botocore_config={"read_timeout": 7}
    )
    config = made.backend.clients.batch_once.meta.config
    assert (made.region, config.read_timeout, config.retries["total_max_attempts"]) == ("us-west-2", 7, 1)


def test_one_connection_shares_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training runs of one connection share the backend, hence the job watcher, and the client of a bucket."""
    connection(monkeypatch, region_name="eu-west-1")
    one, two = (session.connect(f"memory://x/run-{number}", aws_conn_id="gpu") for number in (1, 2))
    other = session.connect("memory://x/run-1", aws_conn_id="gpu", region_name="us-east-1")
    alone = session.connect_alone("memory://x/run-1", aws_conn_id="gpu")
    assert one.backend is two.backend
    assert one.store.client is two.store.client
    assert len({id(each.backend) for each in (one, other, alone)}) == 3


def test_edited_connection_comes_into_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is made anew after an hour, and in another process."""
    connection(monkeypatch, region_name="eu-west-1")
    session.connect("memory://x/run", aws_conn_id="gpu")
    connection(monkeypatch, region_name="eu-central-1")
    assert session.connect("memory://x/run", aws_conn_id="gpu").region == "eu-west-1"
    monkeypatch.setattr(session, "KEEP_SECONDS", -1.0)
    assert session.connect("memory://x/run", aws_conn_id="gpu").region == "eu-central-1"


def test_without_a_connection(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With aws_conn_id=None the SDKs' own variables count, for the store too."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    made = session.connect("s3://bucket/plain", aws_conn_id=None)
    made.store.put("y", b"1")
    assert made.store.get("y").data == b"1"
    assert made.backend.clients.batch.meta.endpoint_url == s3


def test_no_region_anywhere() -> None:
    """Without a region the three places are named where one can be given."""
    with pytest.raises(ConfigurationError, match=r"region_name=.*Airflow connection.*AWS_DEFAULT_REGION"):
        session.connect("memory://x/run", aws_conn_id=None)


@pytest.mark.parametrize(
    ("reply", "region"),
    [
        ({"BucketRegion": "eu-north-1"}, "eu-north-1"),
        ({"ResponseMetadata": {"HTTPHeaders": {"x-amz-bucket-region": "eu-south-1"}}}, "eu-south-1"),
        ({}, "us-east-1"),
    ],
)
def test_bucket_elsewhere(reply: dict[str, Any], region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store signs for the bucket's region, which AWS names even where it refuses the call."""
    from types import SimpleNamespace

    from botocore.exceptions import ClientError

    def head_bucket(**_: Any) -> Any:
        if "BucketRegion" in reply:
            return reply
        raise ClientError({"Error": {"Code": "403"}, **reply}, "HeadBucket")

    client = SimpleNamespace(head_bucket=head_bucket)
    account = SimpleNamespace(
        session=SimpleNamespace(client=lambda *_, **__: client),
        region="us-east-1",
        endpoints={},
        verify=None,
        config=Config(),
        making=threading.Lock(),
    )
    assert session.bucket_region(account, "b") == region


def test_connection_s_own_client_config_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without botocore_config= the connection's config_kwargs hold."""
    connection(monkeypatch, region_name="eu-west-1", config_kwargs={"read_timeout": 9})
    made = session.connect("memory://x/run", aws_conn_id="gpu")
    assert made.backend.clients.batch.meta.config.read_timeout == 9


def test_what_worked_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that cannot be made anew ends no training: the old one goes on; also where its connection is gone."""
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    connection(monkeypatch, region_name="eu-west-1")
    old = session.connect("memory://x/run", aws_conn_id="gpu")
    monkeypatch.setattr(session, "KEEP_SECONDS", -1.0)
    monkeypatch.delenv("AIRFLOW_CONN_GPU")
    assert session.connect("memory://x/run", aws_conn_id="gpu").backend is old.backend


def test_unanswered_role_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first session of a role that STS does not give now is an outage, never the end of a training."""
    connection(
        monkeypatch,
        region_name="eu-west-1",
        role_arn="arn:aws:iam::123456789012:role/r",
        service_config={"sts": {"endpoint_url": "http://127.0.0.1:1"}},
        config_kwargs={"retries": {"total_max_attempts": 1}},
    )
    with pytest.raises(BatchUnavailable, match="signing in to AWS"):
        session.connect("memory://x/run", aws_conn_id="gpu")


def test_no_connection_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one connection's session is being made, that of another is given at once."""
    connection(monkeypatch, region_name="eu-west-1")
    begun, held, make = threading.Event(), threading.Event(), session._make

    def slow(*settings: Any) -> Any:
        if settings[1] == "us-east-1":
            begun.set()
            held.wait(10)
        return make(*settings)

    monkeypatch.setattr(session, "_make", slow)
    thread = threading.Thread(
        target=session.connect, args=["memory://x/run"], kwargs={"aws_conn_id": "gpu", "region_name": "us-east-1"}
    )
    thread.start()
    begun.wait(10)
    other: list[Any] = []
    second = threading.Thread(target=lambda: other.append(session.connect("memory://x/run", aws_conn_id="gpu")))
    second.start()
    second.join(5)
    held.set()
    thread.join(10)
    assert [made.region for made in other] == ["eu-west-1"]
