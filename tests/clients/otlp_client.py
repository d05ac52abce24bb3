"""A collector made of OpenTelemetry's own Python messages and gRPC's own server takes the spans of mock workers: of requests
as children of the client's, of passes, and over both of OTLP's ways.

    python otlp_client.py path/to/windtunnel
"""

import sys
import threading
import time
from concurrent import futures
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service
from workers import Mocker, check, post

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CASES = [
    ("vllm", "llm_request", []),
    ("sglang", " Req ", ["--enable-trace"]),
    ("trtllm", "llm_request", []),
]


class Collector:
    """Both servers; `batches` is what came."""

    def __init__(self):
        self.batches = []
        collector = self

        class Traces(service.TraceServiceServicer):
            def Export(self, request, context):
                collector.batches.append(request)
                return messages.ExportTraceServiceResponse()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                check(self.path == "/v1/traces", f"POST {self.path}")
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.batches.append(messages.ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.grpc = grpc.server(futures.ThreadPoolExecutor(2))
        service.add_TraceServiceServicer_to_server(Traces(), self.grpc)
        grpc_port = self.grpc.add_insecure_port("127.0.0.1:0")
        self.grpc.start()
        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.endpoints = {
            "grpc": f"http://127.0.0.1:{grpc_port}",
            "http/protobuf": f"http://127.0.0.1:{self.http.server_port}/v1/traces",
        }

    def spans(self):
        return [
            span
            for batch in list(self.batches)
            for resource in batch.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def attributes(span):
    return {of.key: getattr(of.value, of.value.WhichOneof("value")) for of in span.attributes}


def main(binary):
    for protocol in ("grpc", "http/protobuf"):
        for engine, name, flags in CASES:
            collector = Collector()
            environment = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": protocol, "OTEL_BSP_SCHEDULE_DELAY": "100"}
            arguments = ["--engine", engine, "--otlp-traces-endpoint", collector.endpoints[protocol]]
            with Mocker(binary, *arguments, *flags, "--otlp-trace-passes", **environment) as mocker:
                body = {"model": "mock", "prompt": [300] * 50, "max_tokens": 5, "ignore_eos": True}
                headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
                status, answer = post(f"{mocker.urls[0]}/v1/completions", body, headers=headers)
                check(status == 200, f"{engine}: {status} {answer}")
                end = time.monotonic() + 30
                while time.monotonic() < end and not any(s.name.startswith(name) for s in collector.spans()):
                    time.sleep(0.05)
            spans = collector.spans()
            requests = [span for span in spans if span.name.startswith(name)]
            passes = [span for span in spans if span.name == "engine_pass"]
            check(len(requests) == 1, f"{engine} by {protocol}: {len(requests)} spans of requests")
            of = attributes(requests[0])
            ids = (requests[0].trace_id.hex(), requests[0].parent_span_id.hex())
            check(ids == (TRACE, PARENT), f"{engine} by {protocol}: the parent is {ids}")
            usage = (of["gen_ai.usage.prompt_tokens"], of["gen_ai.usage.completion_tokens"])
            check(usage == (50, 5), f"{engine} by {protocol}: {usage} tokens")
            took = (requests[0].end_time_unix_nano - requests[0].start_time_unix_nano) / 1e9
            check(abs(took - of["gen_ai.latency.e2e"]) < 1e-6, f"{engine} by {protocol}: {took} {of}")
            given = sum(attributes(span)["windtunnel.pass.output_tokens"] for span in passes)
            check(given == 5, f"{engine} by {protocol}: passes gave {given} tokens")
            print(f"opentelemetry-proto {engine} by {protocol}: one request, {len(passes)} passes")


if __name__ == "__main__":
    main(sys.argv[1])
