"""A hub for tests: what huggingface_hub's own client asks for when a folder is uploaded."""

import base64
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import yaml


class Hub:
    """A server on this machine; `files` has what was committed, by repository and path."""

    def __init__(self):
        self.files, self.repositories, self.tokens = {}, {}, set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer({"name": "me", "type": "user"})

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hub.tokens.add(self.headers["Authorization"])
                try:
                    self.answer(hub.asked(self.path, body))
                except ValueError as refused:
                    self.answer({"error": str(refused)}, 400)

            def answer(self, value, status=200):
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def asked(self, path, body):
        """The answer to a request; a ValueError is what the hub refuses."""
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
            self.repositories[name] = wanted.get("private", wanted.get("visibility"))
            return {"url": f"{self.endpoint}/{name}", "id": name, "name": name}
        if path == "/api/validate-yaml":
            return self._validated(json.loads(body)["content"])
        found = re.fullmatch(r"/api/models/(\w+/[\w-]+)/(preupload|commit)/main(\?.*)?", path)
        if not found:
            raise ValueError(f"not known: {path}")
        if found[2] == "preupload":
            files = json.loads(body)["files"]
            whole = {"uploadMode": "regular", "shouldIgnore": False}
            return {"files": [{"path": f["path"], **whole} for f in files]}
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.files[found[1], line["value"]["path"]] = content
        return {"commitUrl": f"{self.endpoint}/{found[1]}/commit/1", "commitOid": "1" * 40}

    def _validated(self, text):
        head = yaml.safe_load(text.split("---")[1])
        base = head.get("base_model", "a/b")
        wrong = not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", base)
        return {
            "errors": [{"message": f'"base_model" {base} is not valid'}] if wrong else [],
            "warnings": [],
        }
