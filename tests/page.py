"""A notebook page without a browser: a kernel, the panel's messages, and a subshell for clicks."""

import json
import time

from jupyter_client.session import Session
from test_kernel import Kernel

WIDGET = "jupyter.widget"


class Page(Kernel):
    """A page that shows panels. Every message from the kernel is kept, with its size in bytes."""

    def __init__(self, client):
        super().__init__(client)
        self.messages = []  # (time, comm id, content, buffers, size)
        self.models, self.closed, self.outputs_seen = {}, set(), []
        self.updates = []  # states of models, sent anew
        self.subshell = None

    def open_subshell(self):
        """As JupyterLab does for a comm target: clicks do not wait for cells."""
        request = self.client.session.msg("create_subshell_request", {})
        self.client.control_channel.send(request)
        while True:
            reply = self.client.get_control_msg(timeout=30)
            if reply["parent_header"].get("msg_id") == request["msg_id"]:
                self.subshell = reply["content"]["subshell_id"]
                return

    def read(self, timeout):
        """Read one message of the kernel; None if none comes."""
        try:
            message = self.client.get_iopub_msg(timeout=timeout)
        except Exception as error:
            if type(error).__name__ == "Empty":
                return None
            raise
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            self.texts[message["parent_header"].get("msg_id")] += content["text"]
        elif kind == "comm_open" and content["target_name"] == WIDGET:
            self.models[content["comm_id"]] = content["data"]["state"]
        elif kind == "comm_close":
            self.closed.add(content["comm_id"])
        elif kind == "comm_msg" and content["data"].get("method") == "custom":
            buffers = [bytes(b) for b in message["buffers"]]
            frames = [message[part] for part in ("header", "parent_header", "metadata", "content")]
            size = sum(len(json.dumps(f, default=str)) for f in frames) + sum(map(len, buffers))
            said = content["data"]["content"]
            self.messages.append((time.monotonic(), content["comm_id"], said, buffers, size))
        elif kind == "comm_msg" and content["data"].get("method") == "update":
            self.updates.append(content["data"]["state"])
        elif kind in ("display_data", "update_display_data"):
            self.outputs_seen.append((kind, content))
        return message

    def until(self, done, timeout=60):
        """Read until something is so; gives it.

        Raises:
            TimeoutError: `timeout` seconds have passed.
        """
        deadline = time.monotonic() + timeout
        while not (found := done()):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the page waited in vain")
            self.read(min(left, 0.5))
        return found

    def finish(self, request):
        """Wait for a cell; what it sends is kept."""

        def idle():
            message = self.read(60)
            return (
                message is not None
                and message["parent_header"].get("msg_id") == request
                and message["content"].get("execution_state") == "idle"
            )

        while not idle():
            pass
        return self.answer(request)

    def answer(self, request):
        """The reply to a cell that has run."""
        from test_kernel import Answer

        while True:
            reply = self.client.get_shell_msg(timeout=60)
            if reply["parent_header"].get("msg_id") == request:
                break
        content = reply["content"]
        failed = content["status"] != "ok"
        error = f"{content['ename']}: {content['evalue']}" if failed else ""
        return Answer(error, self.texts[request])

    def panel(self):
        """Comm id of the newest panel."""
        return next(i for i in reversed(self.models) if "_esm" in self.models[i])

    def say(self, content, comm=None):
        """Send a custom message to the panel, on the subshell."""
        self.comm_msg({"method": "custom", "content": content}, comm)

    def comm_msg(self, data, comm=None):
        """Send a message of the widget protocol."""
        session: Session = self.client.session
        message = session.msg("comm_msg", {"comm_id": comm or self.panel(), "data": data})
        if self.subshell is not None:
            message["header"]["subshell_id"] = self.subshell
        self.client.shell_channel.send(message)

    def heard(self, since, **wanted):
        """The first message after the first `since` ones that has these values; else None."""
        for entry in self.messages[since:]:
            if all(entry[2].get(k) == v for k, v in wanted.items()):
                return entry
        return None

    def click(self, number, timeout=30, **order):
        """Send an order; gives the seconds until its first ack, and that ack."""
        since, sent = len(self.messages), time.monotonic()
        self.say({"type": "order", "view": "v", "id": f"click-{number}", "args": {}, **order})
        entry = self.until(lambda: self.heard(since, type="ack", id=f"click-{number}"), timeout)
        return entry[0] - sent, entry[2]
