"""Completes the demo tenant's key, and writes it, its id and its hash into a directory.

The chart can generate random text, but it can compute neither CRC nor HMAC. So a Secret holds the random part (8
and 43 characters), and pods that need the key derive the rest of it here, always with the same result.
"""

import os
import sys
from pathlib import Path
from zlib import crc32

from gateway.tenants.keys import ALPHABET, CHECKSUM_LENGTH, HASH_PREFIX, PREFIX, key_digest, key_id, pepper

body = PREFIX + os.environ["DEMO_KEY"]
number, checksum = crc32(body.encode()), ""
for _ in range(CHECKSUM_LENGTH):
    number, digit = divmod(number, len(ALPHABET))
    checksum = ALPHABET[digit] + checksum
key = body + checksum
identity = key_id(key)
if identity is None:
    sys.exit(
        "demo-key: the random text in the Secret forms no key; delete the Secret's entry demo-key and upgrade"
    )

digest = key_digest(key, pepper(os.environ["RADIXGATE_DEPLOYMENT_SECRET"].encode()))
os.umask(0o077)
for name, text in {"key": key, "id": identity, "hash": HASH_PREFIX + digest.hex()}.items():
    (Path(sys.argv[1]) / name).write_text(f"{text}\n")
