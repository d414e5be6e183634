"""What a user of the official openai SDK does with sound: see sdk_client.py."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import openai
from openai import OpenAI
from sdk_client import expect


def main() -> None:
    url, key, model = sys.argv[1:4]
    client = OpenAI(base_url=url, api_key=key)
    sound = bytes(range(256)) * 1000
    asked = {"include": ["logprobs"], "timestamp_granularities": ["word", "segment"], "language": "en"}
    hear = client.audio.transcriptions.create
    answer = hear(model=model, file=("a.wav", sound, "audio/wav"), temperature=0.5, prompt="hi", **asked)
    expect(answer.text == "Grüße")
    expect((answer.usage.type, answer.usage.total_tokens) == ("tokens", 19))
    with TemporaryDirectory() as directory:
        file = Path(directory, "b.mp3")
        file.write_bytes(sound)
        expect(hear(model=model, file=file, response_format="verbose_json").duration == 3)
        with file.open("rb") as opened:
            expect(hear(model=model, file=opened, response_format="srt").startswith("1\n00:00:00"))
    vad = {"type": "server_vad", "threshold": 0.5}
    events = list(hear(model=model, file=sound, stream=True, chunking_strategy=vad))
    kinds = [event.type for event in events]
    expect(kinds == ["transcript.text.delta", "transcript.text.delta", "transcript.text.done"])
    expect(events[-1].usage.total_tokens == 19)
    translate = client.audio.translations.create
    expect(translate(model=model, file=("a.wav", sound)).text == "Grüße")
    expect(translate(model=model, file=("a.wav", sound), response_format="text") == "Grüße\n")
    for wrong, kind, code in (
        (lambda: hear(model="none", file=sound), openai.NotFoundError, "model_not_found"),
        (lambda: hear(model="", file=sound), openai.BadRequestError, "invalid_request"),
    ):
        try:
            wrong()
        except kind as err:
            expect(err.code == code)
        else:
            expect(False)
    print(openai.__version__)


if __name__ == "__main__":
    main()
