"""obstore as we configure it, and its errors in our words, against real HTTP."""

from __future__ import annotations

import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from airflow_spot.errors import StoreDenied, StoreError, StoreUnavailable
from airflow_spot.rundir import record
from airflow_spot.rundir.conditional import Written, create_json, swap_json
from airflow_spot.rundir.s3 import settings
from airflow_spot.rundir.values import Claim

MINE = Claim(attempt=1, job="mine", incarnation=1)
ENVIRONMENT = [
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_CA_BUNDLE",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
]


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch):
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def config(bucket: str = "runs", **given: Any) -> dict[str, Any]:
    return settings(bucket, **given)["config"]


class TestSettings:
    """What obstore is told."""

    def test_aws_gets_the_bucket_in_the_host_name(self):
        """No endpoint, no bucket in the path; conditional writes by ETag."""
        expected = {
            "bucket": "runs",
            "region": "us-east-1",
            "conditional_put": "etag",
            "virtual_hosted_style_request": True,
        }

        assert expected == config()
        assert settings("runs")["client_options"] == {"allow_http": False}

    def test_a_bucket_with_dots_goes_into_the_path(self):
        """No wildcard certificate matches it as a host name."""
        assert config("my.runs")["virtual_hosted_style_request"] is False

    def test_an_endpoint_gets_the_bucket_in_the_path(self):
        """As every other S3 understands it."""
        found = settings("runs", endpoint="https://minio.example:9000/")

        assert found["config"]["virtual_hosted_style_request"] is False
        assert found["config"]["aws_endpoint_url_s3"] == "https://minio.example:9000"
        assert found["client_options"]["allow_http"] is False

    @pytest.mark.parametrize(("given", "expected"), [(None, True), (True, True), (False, False)])
    def test_http_is_allowed_for_an_http_endpoint(self, given, expected):
        """Unless the caller decides."""
        options = settings("runs", endpoint="http://127.0.0.1:4566", allow_http=given)["client_options"]

        assert options["allow_http"] is expected

    def test_the_environment_stands_in(self, monkeypatch):
        """As with the SDKs, the variable of S3 wins over the one for all services."""
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all:1")
        assert (config()["region"], config()["aws_endpoint_url_s3"]) == ("eu-north-1", "http://all:1")

        monkeypatch.setenv("AWS_REGION", "eu-west-3")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3:1")
        assert (config()["region"], config()["aws_endpoint_url_s3"]) == ("eu-west-3", "http://s3:1")

        found = config(region="eu-west-1", endpoint="http://given:1")
        assert (found["region"], found["aws_endpoint_url_s3"]) == ("eu-west-1", "http://given:1")

    def test_the_metadata_endpoint_of_the_sdks_is_honoured(self, monkeypatch):
        """obstore knows another variable for it."""
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1338/")

        assert config()["metadata_endpoint"] == "http://127.0.0.1:1338"

    def test_china_has_a_domain_of_its_own(self):
        """obstore does not know it."""
        assert config(region="cn-north-1")["aws_endpoint_url_s3"] == "https://s3.cn-north-1.amazonaws.com.cn"

    def test_certificates_as_in_boto3(self, monkeypatch, tmp_path):
        """False, a bundle, or the bundle of the environment."""
        (tmp_path / "ca.pem").write_bytes(b"pem")
        assert settings("runs", verify=False)["client_options"]["allow_invalid_certificates"] is True
        assert settings("runs", verify=str(tmp_path / "ca.pem"))["client_options"]["root_certificate"] == b"pem"

        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        assert settings("runs")["client_options"]["root_certificate"] == b"pem"


class TestMoto:
    """Against moto's S3."""

    def test_an_explicit_endpoint_wins_over_the_environment(self, open_s3, monkeypatch):
        """obstore itself would prefer AWS_ENDPOINT_URL_S3."""
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")

        assert open_s3().get("x") is None

    def test_the_environment_alone_suffices(self, open_s3, s3_endpoint, monkeypatch):
        """As in a container of the local cloud."""
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        store = open_s3(endpoint=None, region=None, credentials=None)
        store.create("x", b"y")

        assert store.get("x").data == b"y"

    def test_a_kms_key_is_passed_on(self, open_s3, s3, tmp_path):
        """Small objects and large ones are encrypted with it."""
        key = "arn:aws:kms:eu-west-1:123456789012:key/0b3f"
        store = open_s3("s3://runs/kms", kms_key=key)
        store.put("small", b"x")
        (tmp_path / "large").write_bytes(b"x" * (9 << 20))
        store.upload(tmp_path / "large", "large")

        for name in ("small", "large"):
            head = s3.head_object(Bucket="runs", Key=f"kms/{name}")
            assert ("aws:kms", key) == (head["ServerSideEncryption"], head["SSEKMSKeyId"])

    def test_a_listing_has_all_its_pages(self, open_s3):
        """S3 lists a thousand at a time."""
        from moto.s3.models import s3_backends

        backend = s3_backends["123456789012"]["aws"]
        for number in range(1005):
            backend.put_object("runs", f"pages/x/{number:04d}", b"")
        store = open_s3("s3://runs/pages")

        assert len(store.list("x/")) == 1005
        store.delete(item.key for item in store.list())
        assert store.list() == []

    @pytest.mark.parametrize("work", ["get", "put", "list"])
    def test_a_missing_bucket_is_no_empty_directory(self, open_s3, work):
        """It is an error that names the bucket's absence, and not one to wait for."""
        store = open_s3("s3://no-such-bucket/x")
        with pytest.raises(StoreError, match="there is no such bucket") as caught:
            {"get": lambda: store.get("x"), "put": lambda: store.put("x", b""), "list": store.list}[work]()

        assert not isinstance(caught.value, StoreUnavailable)


class Proxy(ThreadingHTTPServer):
    """Forwards to S3, but for scripted requests: ``(status, code, forwarded first)`` by number of request."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.endpoint = endpoint
        self.script: list[tuple[int, str, bool] | None] = []
        self.requests: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Forward(BaseHTTPRequestHandler):
    server: Proxy

    def log_message(self, *args: object) -> None:
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.requests.append(self.command)
        fault = self.server.script.pop(0) if self.server.script else None
        status, headers, reply = self._forwarded(body) if not fault or fault[2] else (0, {}, b"")
        if fault:
            status, headers = fault[0], {}
            reply = f"<Error><Code>{fault[1]}</Code><Message>scripted</Message></Error>".encode()
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply)

    def _forwarded(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection(self.server.endpoint.removeprefix("http://"), timeout=10)
        try:
            connection.request(self.command, self.path, body=body, headers=dict(self.headers.items()))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815


@pytest.fixture
def proxy(s3_endpoint):
    server = Proxy(s3_endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class TestFaults:
    """What the wire does, and what we make of it."""

    @pytest.fixture
    def store(self, open_s3, proxy):
        return open_s3(endpoint=proxy.url, timeout_seconds=3)

    def test_a_lost_reply_to_a_create_counts(self, store, proxy):
        """obstore repeats by itself and then reports our own write as a rival's."""
        proxy.script = [(503, "SlowDown", True)]
        done = create_json(store, "k", MINE)

        assert isinstance(done, Written)
        assert proxy.requests == ["PUT", "PUT", "GET"]

    def test_a_lost_reply_to_a_swap_counts(self, store, proxy):
        """The same over what was read."""
        etag = store.put("k", b"before")
        proxy.script = [(500, "InternalError", True)]

        assert isinstance(swap_json(store, "k", MINE, etag), Written)

    @pytest.mark.parametrize("write", ["create", "swap"])
    def test_a_409_is_no_rival(self, store, proxy, write):
        """S3 answers 409 when two writes meet; nothing was stored, so it is tried again."""
        etag = store.put("k", b"before") if write == "swap" else ""
        conflict = (409, "ConditionalRequestConflict", False)
        proxy.script = [conflict, None, conflict, None]
        done = swap_json(store, "k", MINE, etag) if write == "swap" else create_json(store, "k", MINE)

        assert isinstance(done, Written)

    def test_server_errors_are_repeated(self, store, proxy):
        """A read survives three of them."""
        store.put("k", b"x")
        proxy.script = [(503, "SlowDown", False)] * 3

        assert store.get("k").data == b"x"

    def test_endless_server_errors_end(self, store, proxy):
        """Within a bounded time: the loop must not stand still."""
        proxy.script = [(503, "SlowDown", False)] * 99
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="no usable answer from the store"):
            store.get("k")

        assert time.monotonic() - began < 8

    def test_nobody_there(self, open_s3):
        """A closed port is an outage."""
        with pytest.raises(StoreUnavailable):
            open_s3(endpoint="http://127.0.0.1:1", timeout_seconds=1).get("k")

    @pytest.mark.parametrize(
        ("status", "code"), [(403, "AccessDenied"), (401, "Unauthorized"), (400, "ExpiredToken"), (403, "KMS.Disabled")]
    )
    def test_denied(self, store, proxy, status, code):
        """Names role, bucket policy and key policy; a stale token is a denial too."""
        proxy.script = [(status, code, False)]
        with pytest.raises(StoreDenied, match="check the role, the bucket policy and, with KMS, the key policy"):
            store.put("k", b"x")

    def test_a_bucket_elsewhere(self, store, proxy):
        """A redirect means another region: no use waiting."""
        proxy.script = [(301, "PermanentRedirect", False)] * 9
        with pytest.raises(StoreError, match="the bucket is in another region") as caught:
            store.get("k")

        assert not isinstance(caught.value, StoreUnavailable)

    def test_a_refused_request(self, store, proxy):
        """A 400 will be a 400 again."""
        proxy.script = [(400, "InvalidArgument", False)]
        with pytest.raises(StoreError, match="the store refused the request") as caught:
            store.put("k", b"x")

        assert not isinstance(caught.value, StoreUnavailable)

    def test_credentials_that_fail_are_a_denial(self, open_s3):
        """The provider's own words come through."""

        def none_today() -> dict[str, Any]:
            raise RuntimeError("no credentials today")

        with pytest.raises(StoreDenied, match="no credentials today"):
            open_s3(credentials=none_today).get("k")

    def test_a_record_is_saved_once_in_spite_of_a_lost_reply(self, store, proxy):
        """The record's compare-and-swap ends done."""
        from airflow_spot.rundir.values import Owner, Record

        owner = Owner(deployment="d", dag_id="d", run_id="r", task_id="t")
        first = record.create(store, Record(run_key="k", owner=owner, spec={}))
        proxy.script = [(503, "SlowDown", True)]
        second = record.save(store, first.record, first.etag)

        assert second == record.load(store)
        assert second.record.write_id != first.record.write_id
