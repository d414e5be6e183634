"""The allowlist of request fields that pass from tenants to workers, by path of the API.

Engines have fields that are not for tenants: they load code, processors or adapters, choose a replica, name files
and hosts, carry credentials, or return internals of the model. New versions bring more of them, so only listed
fields pass, and others that the operator lists (`requests.pass_fields`). The adapters add the fields that the
gateway sets itself.
"""

from collections.abc import Mapping

RequestFields = Mapping[str, frozenset[str]]
"""Names of top-level fields by path below the worker's URL."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAMPLING = _names(
    """frequency_penalty logit_bias max_tokens n presence_penalty seed stop stream stream_options temperature top_p
    user best_of logprobs"""
)
_ENGINE_SAMPLING = _names(
    """ignore_eos include_stop_str_in_output length_penalty min_p min_tokens no_stop_trim prompt_logprobs
    repetition_penalty return_token_ids return_tokens_as_token_ids skip_special_tokens spaces_between_special_tokens
    stop_token_ids top_k allowed_token_ids bad_words add_special_tokens truncate_prompt_tokens truncation_side
    use_beam_search thinking_token_budget"""
)
_GRAMMARS = _names(
    """ebnf guided_choice guided_decoding_backend guided_grammar guided_json guided_regex guided_whitespace_pattern
    json_schema regex response_format structural_tag structured_outputs"""
)
_CHAT = _names(
    """add_generation_prompt audio cache_control chat_template_kwargs continue_final_message documents function_call
    functions include_reasoning max_completion_tokens messages metadata modalities parallel_tool_calls prediction
    prompt_cache_key prompt_cache_retention reasoning reasoning_effort return_reasoning safety_identifier
    separate_reasoning service_tier store stream_reasoning thinking tool_choice tools top_logprobs verbosity
    web_search_options prompt_cache_options moderation enable_thinking"""
)
_EMBEDDINGS = _names(
    """dimensions embed_dtype encoding_format endianness input instruction messages normalize truncate_prompt_tokens
    truncation_side use_activation user add_generation_prompt add_special_tokens chat_template_kwargs
    continue_final_message task input_type"""
)
_TEXTS = _names(
    """apply_softmax data_1 data_2 documents input instruct instruction item_first items label_token_ids
    max_tokens_per_doc queries query return_documents text_1 text_2 top_n truncate_prompt_tokens truncation_side
    use_activation user"""
)
_SPEECH = _names(
    "input instructions language response_format speed stream stream_format task_type user voice"
)
_AUDIO = _names(
    """chunking_strategy file frequency_penalty hotwords include known_speaker_names known_speaker_references
    language logprobs max_completion_tokens min_p presence_penalty prompt repetition_penalty response_format seed
    stream temperature timestamp_granularities to_language top_k top_p stream_include_usage
    stream_continuous_usage_stats"""
)
_TOKENIZE = _names(
    """add_generation_prompt add_special_tokens chat_template_kwargs continue_final_message messages prompt
    return_token_strs skip_special_tokens tokens tools"""
)

FIELDS: RequestFields = {
    path: names | {"model"}
    for path, names in {
        "v1/chat/completions": _SAMPLING | _CHAT | _GRAMMARS | _ENGINE_SAMPLING,
        "v1/completions": _SAMPLING | _GRAMMARS | _ENGINE_SAMPLING | {"echo", "prompt", "suffix"},
        "v1/embeddings": _EMBEDDINGS,
        "v1/rerank": _TEXTS,
        "v1/score": _TEXTS,
        "v1/moderations": _TEXTS,
        "v1/audio/speech": _SPEECH,
        "v1/audio/transcriptions": _AUDIO,
        "v1/audio/translations": _AUDIO,
        "tokenize": _TOKENIZE,
        "detokenize": _TOKENIZE,
    }.items()
}
"""Fields of OpenAI's API, and engine fields that only control how an answer is sampled, bounded or written."""
