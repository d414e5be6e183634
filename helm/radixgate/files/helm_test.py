"""Requests the models of the gateway and a completion by one of them, as a tenant would.

Without a key it only checks that requests without a key are refused. It waits for up to a minute: workers may be
loading. The certificate of the gateway is not checked: it names a public host, not the Service.
"""

import json
import os
import ssl
import sys
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

SECONDS_MAX = 60.0
ANY_CERTIFICATE = ssl._create_unverified_context()


def ask(path: str, key: str, body: dict | None = None) -> tuple[int, dict]:
    """Return status and JSON of the answer; the status is 0 if there is no answer."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    data = json.dumps(body).encode() if body is not None else None
    request = Request(os.environ["GATEWAY_URL"] + path, data=data, headers=headers)
    try:
        with urlopen(request, timeout=30, context=ANY_CERTIFICATE) as answer:
            return answer.status, json.load(answer)
    except HTTPError as err:
        return err.code, {"text": err.read().decode(errors="replace")}
    except (URLError, OSError) as err:
        return 0, {"text": str(err)}


def ask_until(path: str, key: str, body: dict | None, wanted: int) -> dict:
    """Return the answer with the wanted status; retry only failures that may be temporary."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        status, answer = ask(path, key, body)
        if status == wanted:
            return answer
        if status not in (0, 502, 503) or time.monotonic() > deadline:
            sys.exit(f"{path}: expected status {wanted}, got {status or 'no answer'}: {answer}")
        time.sleep(1)


key_file = Path("/run/radixgate/key")
key = os.environ.get("API_KEY") or (key_file.read_text().strip() if key_file.exists() else "")
ask_until("/v1/models", "", None, 401)
print("a request without a key is refused")
if key:
    deadline = time.monotonic() + SECONDS_MAX
    names = [os.environ["MODEL"]] if os.environ.get("MODEL") else []
    while not names:
        # Models without an entry in the settings are known once a worker has reported them.
        names = [card["id"] for card in ask_until("/v1/models", key, None, 200)["data"]]
        if not names and time.monotonic() > deadline:
            sys.exit("this key may not use any model, or no worker has reported one")
        time.sleep(0 if names else 1)
    print(f"models: {', '.join(names)}")
    body = {"model": names[0], "prompt": "Good morning", "max_tokens": 8}
    answer = ask_until("/v1/completions", key, body, 200)
    print(f"{names[0]} answered, with {answer['usage']}")
else:
    print("no completion was requested, for lack of a key: name one in test.apiKey.existingSecret")
