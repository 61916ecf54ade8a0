"""Access-control service for the back end `http`: answers by rules, records questions, can be slow or wrong."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


class FakeAccessService:
    """Service that allows user `ann` with the password `right`, and what `denied` does not name."""

    def __init__(self) -> None:
        self.questions: list[tuple[str, dict[str, str]]] = []
        self.methods: list[str] = []
        self.denied: set[tuple[str, ...]] = set()
        """Values of parameters: a question that has all of them is denied."""
        self.texts: dict[str, str] = {}
        """Answers by the kind of the question, in the place of those by the rules."""
        self.status = 200
        self.tags = " administrator"
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                self.reply(url.path, url.query)

            def do_POST(self) -> None:
                self.reply(self.path, self.rfile.read(int(self.headers["Content-Length"])).decode())

            def reply(self, path: str, form: str) -> None:
                with service._lock:
                    service._now += 1
                    service.most_at_once = max(service.most_at_once, service._now)
                    service.methods.append(self.command)
                    found = dict(parse_qsl(form, keep_blank_values=True))
                    service.questions.append((path.rpartition("/")[2], found))
                service.may_answer.wait(120)
                text = service.answer(path.rpartition("/")[2], found).encode()
                with service._lock:
                    service._now -= 1
                try:
                    self.send_response(service.status)
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)
                except OSError:
                    return

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def paths(self) -> dict[str, Any]:
        """Settings with the URLs of this service."""
        base = f"http://127.0.0.1:{self._server.server_address[1]}/auth"
        return {f"{kind}_path": f"{base}/{kind}" for kind in ("user", "vhost", "resource", "topic")}

    def answer(self, kind: str, question: dict[str, str]) -> str:
        """Return the text of an answer."""
        if kind in self.texts:
            return self.texts[kind]
        if any(set(values) <= {*question.values(), kind} for values in self.denied):
            return "deny"
        if kind == "user":
            allowed = question["username"] == "ann" and question.get("password") == "right"
            return f"allow{self.tags}" if allowed else "deny"
        return "allow"

    def asked(self, kind: str) -> list[dict[str, str]]:
        """Return the questions of one kind so far."""
        with self._lock:
            return [question for each, question in self.questions if each == kind]

    def __enter__(self) -> FakeAccessService:
        return self

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
