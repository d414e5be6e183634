"""The first steps of an engine with the Triton backend: kernels are compiled before a request waits for them."""

import torch

from workers.engine.attention.attention_backend import AttentionBackend, AttentionSpan
from workers.engine.errors import ConfigInvalid
from workers.engine.model.decoder import Decoder


def compile_kernels(decoder: Decoder, attention: AttentionBackend, device: torch.device) -> None:
    """Compute a prompt of two tokens and one token after it, over the spare block.

    Raises:
        ConfigInvalid: a kernel cannot be compiled for this model and device.
    """
    # Here, so that triton is imported only where it computes.
    from triton.errors import TritonError

    spans = (
        AttentionSpan(start=0, count=2, blocks=[0, 0]),
        AttentionSpan(start=2, count=1, blocks=[0, 0, 0]),
    )
    try:
        with torch.inference_mode():
            for span in spans:
                tokens = torch.zeros(span.count, dtype=torch.long, device=device)
                positions = torch.arange(span.start, span.end, device=device)
                decoder.forward(tokens, positions, attention.begin([span]))
    except TritonError as err:
        reason = str(err).partition("\n")[0]
        raise ConfigInvalid(
            f"attention_backend triton cannot compute this model on this device ({reason}); "
            "start with attention_backend sdpa"
        ) from err
