"""Mock workers and what talks to them, as processes on loopback. Needs nothing but Python."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request


def check(condition, what):
    if not condition:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {what}")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Process:
    """A process that ends with the block it was started for. What it says goes to a file."""

    def __init__(self, command, **environment):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.command = command
        self.process = subprocess.Popen(
            command,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self.log.close()

    def said(self):
        with open(self.log.name, errors="replace") as log:
            return log.read()

    def wait(self, what, seconds=60):
        """The first value of `what()` that is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                value = what()
            except (OSError, urllib.error.URLError):
                value = None
            if value:
                return value
            check(self.process.poll() is None, f"{self.command[0]} ended:\n{self.said()[-4000:]}")
            time.sleep(0.1)
        check(False, f"{self.command} is not ready after {seconds} s:\n{self.said()[-4000:]}")


class Mocker(Process):
    """`windtunnel mocker`; `urls` are its workers."""

    def __init__(self, binary, *arguments, workers=1, **environment):
        environment.setdefault("VLLM_NIXL_SIDE_CHANNEL_PORT", "0")
        super().__init__([binary, "mocker", "--port", "0", *arguments], **environment)
        self.urls = self.wait(lambda: self._urls(workers))

    def _urls(self, workers):
        found = [line.rpartition(" at ")[2] for line in self.said().splitlines() if " at http://" in line]
        return found if len(found) == workers else None


def get(url, timeout=30):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


def post(url, body, timeout=60, headers=None):
    """Status and body; JSON where it is."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json", **(headers or {})}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def events(url, body, timeout=60):
    """The events of a stream."""
    status, text = post(url, {**body, "stream": True}, timeout)
    check(status == 200, f"{url}: {status} {text}")
    data = [event[len("data: ") :] for event in text.split("\n\n") if event.startswith("data: ")]
    check(data and data[-1] == "[DONE]", f"{url}: the stream does not end: {data[-2:]}")
    return [json.loads(event) for event in data[:-1]]


def metric(text, name, **labels):
    """The sum over the series of a metric that have these labels."""
    total = 0.0
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name and all(f'{key}="{value}"' in series for key, value in labels.items()):
            total += float(value)
    return total
