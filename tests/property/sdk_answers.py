"""Answers as an SDK's own types read them, strictly: `sdk_answers.py` with the SDK on the path.

Takes lines of [module, type, answer] and writes a line of faults for each at once, until its input ends.
"""

import importlib
import json
import sys

from pydantic import TypeAdapter, ValidationError

for line in sys.stdin:
    module, name, answer = json.loads(line)
    faults: list[str] = []
    try:
        TypeAdapter(getattr(importlib.import_module(module), name)).validate_python(answer)
    except ValidationError as err:
        faults = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in err.errors()]
    print(json.dumps(faults), flush=True)
