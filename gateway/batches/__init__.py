"""The rows of batches, run through the same pipeline as other requests.

`batch_claimer` claims batches and `batch_run` runs one from its input file to its output files. `input_file` parses
and validates the input, `row_exchange` shows a row to the pipeline as a request, and `retry_schedule` says when a
refused row is tried again. `output_lines` writes the results in the format of OpenAI or Anthropic, and
`result_writer` stores them in the database. `batch_services` holds what all of these need, and `claimer_setup` puts
them together.
"""
