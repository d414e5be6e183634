"""An engine program that is launched as SGLang and vLLM are: it answers probes and obeys a file.

`make(directory)` writes an executable that stands for the engine's Python interpreter. In its directory the program
leaves `argv.json` (the arguments of its last start), and a line with its process id in `starts` for each start. It
obeys the file `script`: `die X` ends the process and leaves X as the script of its next start, `silent` makes it
answer probes with 503, `stubborn` makes it ignore SIGTERM, and `running N` is the load that it reports.
"""

import sys
from pathlib import Path

SOURCE = """
import json, os, pathlib, signal, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

here = pathlib.Path(__file__).parent
words = sys.argv[1:]
(here / "argv.json").write_text(json.dumps(words))
with (here / "starts").open("a") as starts:
    starts.write(f"{os.getpid()}\\n")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(here / "child").write_text(str(child.pid))


def script():
    try:
        return (here / "script").read_text()
    except FileNotFoundError:
        return ""


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        told = script()
        running = int(told.split()[1]) if told.startswith("running") else 0
        bodies = {
            "/v1/models": {"object": "list", "data": [{"id": "m"}]},
            "/server_info": {"max_total_num_tokens": 1000},
            "/v1/loads": {"loads": [{"num_running_reqs": running}]},
        }
        body = json.dumps(bodies.get(self.path, {})).encode()
        self.send_response(503 if told == "silent" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def watch():
    while True:
        if script().startswith("die"):
            (here / "script").write_text(script().partition(" ")[2])
            os._exit(3)
        time.sleep(0.02)


signal.signal(signal.SIGTERM, lambda *_: None if script() == "stubborn" else os._exit(0))
threading.Thread(target=watch, daemon=True).start()
port = int(words[words.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Answers).serve_forever()
"""


def make(directory: Path) -> Path:
    """Write the executable into the directory and return its path."""
    source, program = directory / "engine.py", directory / "python"
    source.write_text(SOURCE)
    # With -c the launcher asks the interpreter for the installed engine version; here there is none.
    asked = f'[ "$1" = -c ] && exec {sys.executable} "$@"\n'
    program.write_text(f'#!/bin/sh\n{asked}exec {sys.executable} {source} "$@"\n')
    program.chmod(0o755)
    return program
