"""The rows of batches, run through the same pipeline as other requests.

`batch_claimer` claims batches, and `batch_run` runs one, from its `batch_input` to its `batch_output`. `input_file`
parses and validates the input, `row_exchange` presents a row to the pipeline as a request, and `retry_schedule`
decides when a refused row is tried again. `output_lines` formats the results for OpenAI's or Anthropic's API, and
`result_writer` stores them in the database. `batch_services` has the services that all of these need, and
`claimer_setup` assembles them.
"""
