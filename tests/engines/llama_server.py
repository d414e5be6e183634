"""Serve a GGUF file with llama.cpp's server: `python llama_server.py FILE MODEL PORT CONTEXT`.

It runs in the environment of xllamacpp, whose wheels have the server as a library in place of a program.
"""

import sys
import threading

import xllamacpp

SLOTS = 2
"""How many requests run at once; they share the context."""


def serve(file, model, port, context):
    parameters = xllamacpp.CommonParams()
    parameters.model.path = file
    parameters.model_alias = {model}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_ctx = context * SLOTS
    parameters.n_parallel = SLOTS
    parameters.n_threads_http = 4
    parameters.cpuparams.n_threads = 1
    parameters.endpoint_metrics = True
    server = xllamacpp.Server(parameters)
    threading.Event().wait()
    del server


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
