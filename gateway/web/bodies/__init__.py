"""Reading and checking of request bodies: memory limits, JSON, forms, long strings.

- How is a body read within limits of size, time and memory? whole_body.py for inference requests, small_body.py and
  multipart.py for others, all by body_reader.py. compressed_body.py decompresses a body, expectation.py answers
  `Expect: 100-continue`
- How is a long body decoded without stalling other streams? body_decoding.py, in a thread; its longest parts in
  slices: long_strings.py, long_id_lists.py
- How is a body decoded into a struct? typed_bodies.py; that of an inference request in inference_body.py
- Which bodies are refused? body_limits.py (too many values, too deep)
"""
